// pack_weight and unpack, torch side. A backend is two functions,
// void run(const PackWeightParams&, int32_t device_idx) and the same for UnpackParams.
#pragma once

#include "gemm/quant_weight.h"

namespace dflash {

// Shape of the packed form of a weight; see GemmWeight.
inline std::vector<int64_t> packed_shape(const GemmWeight& w) {
  constexpr int64_t kBlock = GemmWeight::kBlock;
  if (w.dtype == DType::kF32) return {w.num_blocks(), w.depth, kBlock};
  return {w.num_blocks(), (w.depth + 1) / 2, kBlock, 2};
}

inline GemmWeight plain_weight(const Checks& checks, const Tensor& weight, bool pair) {
  checks.tensor("weight", weight, kFloats, "[N, K]", {-1, -1});
  return gemm_weight(checks, weight, weight.scalar_type(), weight.size(1), -1, pair);
}

template <auto kRun>
void pack_weight_out(const Tensor& weight, bool pair, const Tensor& out) {
  const Checks checks{"pack_weight", weight};
  const GemmWeight plain = plain_weight(checks, weight, pair);
  const auto shape = packed_shape(plain);
  checks.tensor("out", out, {weight.scalar_type()}, "[blocks, ...]", shape);
  check_contiguous(checks, "out", out);
  kRun(PackWeightParams{plain, out.mutable_data_ptr()}, weight.get_device_index());
}

template <auto kRun, auto kAdvise>
Tensor pack_weight(const Tensor& weight, bool pair) {
  const Checks checks{"pack_weight", weight};
  const GemmWeight plain = plain_weight(checks, weight, pair);
  Tensor out = new_tensor(weight, packed_shape(plain), weight.scalar_type());
  kAdvise(out.mutable_data_ptr(), plain.num_blocks() * plain.block_bytes());
  pack_weight_out<kRun>(weight, pair, out);
  return out;
}

inline GemmWeight packed_weight(const Checks& checks, const Tensor& packed,
                                IntHeaderOnlyArrayRef shape, bool pair,
                                const std::optional<std::string>& format) {
  if (shape.size() != 2) checks.fail("shape must be [N, K], got ", shape_name(shape));
  checks.at_least<int64_t>("shape[0]", shape[0], 0);
  checks.at_least<int64_t>("shape[1]", shape[1], 0);
  if (format) {
    return quant_weight(checks, packed, quant_format(checks, *format), ScalarType::Float, shape[1],
                        shape[0], pair, "packed");
  }
  if (packed.dim() == 2) checks.fail("packed must have 3 or 4 dimensions, got 2");
  if (std::ranges::find(kFloats, packed.scalar_type()) == kFloats.end()) {
    checks.tensor("packed", packed, kFloats, "", {});
  }
  return gemm_weight(checks, packed, packed.scalar_type(), shape[1], shape[0], pair, "packed");
}

template <auto kRun>
void unpack_out(const Tensor& packed, std::vector<int64_t> shape, bool pair,
                std::optional<std::string> format, const Tensor& out) {
  const Checks checks{"unpack", packed};
  const GemmWeight w = packed_weight(checks, packed, shape, pair, format);
  const ScalarType dtype = format ? ScalarType::Float : packed.scalar_type();
  const auto to = checks.array_out<2>("out", out, {dtype}, "[N, K]", {shape[0], shape[1]});
  kRun(UnpackParams{w, to}, packed.get_device_index());
}

template <auto kRun>
Tensor unpack(const Tensor& packed, std::vector<int64_t> shape, bool pair,
              std::optional<std::string> format) {
  packed_weight(Checks{"unpack", packed}, packed, shape, pair, format);
  Tensor out = new_tensor(packed, shape, format ? ScalarType::Float : packed.scalar_type());
  unpack_out<kRun>(packed, shape, pair, std::move(format), out);
  return out;
}

}  // namespace dflash
