// pack_w8 and pack_w4, torch side. A backend is a function
// void run(const PackQuantParams&, int32_t device_idx), and for pack_w4
// std::vector<int64_t> read(const IndexView&, int64_t count, int32_t device_idx).
#pragma once

#include "gemm/quant_weight.h"

namespace dflash {

// A group size, or -1 for one scale for all of k: groups of the largest size with the same scale.
inline void set_group(const Checks& checks, const char* name, int64_t group, PackQuantParams& p) {
  constexpr int32_t kLargest = 512;
  p.is_one_group = group < 0;
  if (group >= 0 && (group < 32 || group > kLargest || (group & (group - 1)) != 0)) {
    checks.fail(name, " must be 32, 64, 128, 256 or 512 or all of k, got ", group);
  }
  p.to.quant.group = p.is_one_group ? kLargest : static_cast<int32_t>(group);
}

inline int64_t scale_groups(const PackQuantParams& p) {
  return p.is_one_group ? 1 : p.to.quant.num_groups(p.to.depth);
}

// The bytes of a matrix of GGUF blocks of 32.
inline void set_gguf(const Checks& checks, const Tensor& weight, QuantSource source,
                     int64_t block_bytes, PackQuantParams& p) {
  p.source = source;
  p.weight = checks.array<2>("weight", weight, {ScalarType::Byte}, "[N, bytes]", {-1, -1});
  checks.last_contiguous("weight", weight);
  if (weight.size(1) % block_bytes != 0) {
    checks.fail("weight must have rows of whole blocks of ", block_bytes, " bytes, got ",
                weight.size(1));
  }
  p.to.num_rows = weight.size(0);
  p.to.depth = weight.size(1) / block_bytes * 32;
  p.to.quant.scale_dtype = DType::kF16;
  p.to.quant.group = 32;
}

inline void check_absent(const Checks& checks, const char* name, bool is_given, const char* with) {
  if (is_given) checks.fail(name, " must be None with ", with);
}

struct PackW8Args {
  const Tensor& weight;
  const OptionalTensor& scales;
  const std::optional<std::vector<int64_t>>& block;
  bool pair;
};

inline PackQuantParams pack_params(const Checks& checks, const PackW8Args& args) {
  PackQuantParams p{};
  p.to = GemmWeight{nullptr, DType::kF32, 0, 0, 0, true, args.pair};
  QuantFormat& quant = p.to.quant;
  quant.codes = Codes::kInt8;
  if (args.weight.scalar_type() == ScalarType::Byte) {
    check_absent(checks, "scales", args.scales.has_value(), "a uint8 weight, which is Q8_0 blocks");
    check_absent(checks, "block", args.block.has_value(), "a uint8 weight, which is Q8_0 blocks");
    set_gguf(checks, args.weight, QuantSource::kQ8_0, 34, p);
  } else {
    p.source = QuantSource::kPlain;
    p.weight = checks.array<2>("weight", args.weight,
                               {ScalarType::Char, ScalarType::Float8_e4m3fn, ScalarType::Byte},
                               "[N, K]", {-1, -1});
    checks.last_contiguous("weight", args.weight);
    if (args.weight.scalar_type() == ScalarType::Float8_e4m3fn) quant.codes = Codes::kF8E4M3;
    p.to.num_rows = args.weight.size(0);
    p.to.depth = args.weight.size(1);
    if (args.block && args.block->size() != 2) {
      checks.fail("block must be [rows, k], got ", shape_name(*args.block));
    }
    p.block_rows = args.block ? (*args.block)[0] : 1;
    checks.at_least<int64_t>("block[0]", p.block_rows, 1);
    const int64_t block_k = args.block ? (*args.block)[1] : p.to.depth;
    checks.at_least<int64_t>("block[1]", block_k, 0);
    set_group(checks, "block[1]", block_k >= p.to.depth ? -1 : block_k, p);
    if (!args.scales) checks.fail("scales must be given with an int8 or fp8 weight, got None");
    p.scales =
        checks.array<2>("scales", *args.scales, kFloats, "[ceil(N / block[0]), ceil(K / block[1])]",
                        {(p.to.num_rows + p.block_rows - 1) / p.block_rows, scale_groups(p)});
    quant.scale_dtype = p.scales.dtype;
  }
  check_pair(checks, "weight", p.to);
  return p;
}

struct PackW4Args {
  const Tensor& weight;
  const OptionalTensor& scales;
  const OptionalTensor& zeros;
  const OptionalTensor& g_idx;
  const std::string& source;
  std::optional<int64_t> group_size;
  bool pair;
};

// Only groups of consecutive k are packed. Waits for g_idx, on the host: packing is for load time.
template <auto kRead>
void check_g_idx(const Checks& checks, const Tensor& g_idx, const PackQuantParams& p) {
  const IndexView view = checks.index("g_idx", g_idx, "[K]", p.to.depth);
  const auto groups = kRead(view, p.to.depth, g_idx.get_device_index());
  for (int64_t k = 0; k < p.to.depth; ++k) {
    const int64_t group = p.is_one_group ? 0 : k / p.to.quant.group;
    if (groups[k] == group) continue;
    checks.fail("g_idx must be k / group_size (not act-order), got ", groups[k], " at k = ", k);
  }
}

template <auto kRead>
PackQuantParams pack_params(const Checks& checks, const PackW4Args& args) {
  checks.one_of("source", args.source, {"gptq", "gptq_v2", "awq", "q4_0", "q4_1"});
  PackQuantParams p{};
  p.to = GemmWeight{nullptr, DType::kF32, 0, 0, 0, true, args.pair};
  QuantFormat& quant = p.to.quant;
  quant.codes = Codes::kInt4;
  if (args.source.starts_with("q4")) {
    check_absent(checks, "scales", args.scales.has_value(), "GGUF blocks");
    check_absent(checks, "zeros", args.zeros.has_value(), "GGUF blocks");
    check_absent(checks, "g_idx", args.g_idx.has_value(), "GGUF blocks");
    check_absent(checks, "group_size", args.group_size.has_value(), "GGUF blocks");
    const bool has_mins = args.source == "q4_1";
    set_gguf(checks, args.weight, has_mins ? QuantSource::kQ4_1 : QuantSource::kQ4_0,
             has_mins ? 20 : 18, p);
    quant.offset = has_mins ? Offset::kMins : Offset::kNone;
  } else {
    const bool is_awq = args.source == "awq";
    p.source = is_awq                  ? QuantSource::kAwq
               : args.source == "gptq" ? QuantSource::kGptq
                                       : QuantSource::kGptqV2;
    p.weight = checks.array<2>("weight", args.weight, {ScalarType::Int},
                               is_awq ? "[K, N / 8]" : "[K / 8, N]", {-1, -1});
    checks.last_contiguous("weight", args.weight);
    p.to.depth = args.weight.size(0) * (is_awq ? 1 : 8);
    p.to.num_rows = args.weight.size(1) * (is_awq ? 8 : 1);
    if (!args.scales) checks.fail("scales must be given with gptq and awq, got None");
    if (!args.group_size) checks.fail("group_size must be given with gptq and awq, got None");
    set_group(checks, "group_size", *args.group_size, p);
    const int64_t groups = scale_groups(p);
    p.scales =
        checks.array<2>("scales", *args.scales, kFloats, "[groups, N]", {groups, p.to.num_rows});
    quant.scale_dtype = p.scales.dtype;
    p.zeros = checks.array<2>("zeros", args.zeros, {ScalarType::Int}, "[groups, ceil(N / 8)]",
                              {groups, (p.to.num_rows + 7) / 8});
    quant.offset = args.zeros ? Offset::kZeros : Offset::kNone;
    if (args.g_idx) check_g_idx<kRead>(checks, *args.g_idx, p);
  }
  check_pair(checks, "weight", p.to);
  return p;
}

template <auto kRun>
void run_pack(const Checks& checks, PackQuantParams p, const Tensor& out) {
  checks.tensor("out", out, {ScalarType::Byte}, "[blocks, block_bytes]",
                {p.to.num_blocks(), p.to.block_bytes()});
  check_contiguous(checks, "out", out);
  p.packed = out.mutable_data_ptr();
  kRun(p, out.get_device_index());
}

template <auto kRun, auto kAdvise>
Tensor new_packed(const Checks& checks, const PackQuantParams& p) {
  const int64_t blocks = p.to.num_blocks(), bytes = p.to.block_bytes();
  Tensor out = new_tensor(checks.like, {blocks, bytes}, ScalarType::Byte);
  kAdvise(out.mutable_data_ptr(), blocks * bytes);
  run_pack<kRun>(checks, p, out);
  return out;
}

template <auto kRun, auto kAdvise>
Tensor pack_w8(const Tensor& weight, const OptionalTensor& scales,
               std::optional<std::vector<int64_t>> block, bool pair) {
  const Checks checks{"pack_w8", weight};
  return new_packed<kRun, kAdvise>(checks,
                                   pack_params(checks, PackW8Args{weight, scales, block, pair}));
}

template <auto kRun>
void pack_w8_out(const Tensor& weight, const OptionalTensor& scales,
                 std::optional<std::vector<int64_t>> block, bool pair, const Tensor& out) {
  const Checks checks{"pack_w8", weight};
  run_pack<kRun>(checks, pack_params(checks, PackW8Args{weight, scales, block, pair}), out);
}

template <auto kRun, auto kRead, auto kAdvise>
Tensor pack_w4(const Tensor& weight, const OptionalTensor& scales, const OptionalTensor& zeros,
               const OptionalTensor& g_idx, std::string source, std::optional<int64_t> group_size,
               bool pair) {
  const Checks checks{"pack_w4", weight};
  const PackW4Args args{weight, scales, zeros, g_idx, source, group_size, pair};
  return new_packed<kRun, kAdvise>(checks, pack_params<kRead>(checks, args));
}

template <auto kRun, auto kRead>
void pack_w4_out(const Tensor& weight, const OptionalTensor& scales, const OptionalTensor& zeros,
                 const OptionalTensor& g_idx, std::string source, std::optional<int64_t> group_size,
                 bool pair, const Tensor& out) {
  const Checks checks{"pack_w4", weight};
  const PackW4Args args{weight, scales, zeros, g_idx, source, group_size, pair};
  run_pack<kRun>(checks, pack_params<kRead>(checks, args), out);
}

}  // namespace dflash
