// Quantised weights of several makes to packed ones, and packed ones to numbers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/dispatch.h"
#include "gemm/cpu/kernels.h"

namespace dflash {
namespace {

constexpr int kBlock = GemmWeight::kBlock;

// Bits of number (i, j) of a 16-bit or fp32 tensor.
uint32_t scale_bits(const ArrayView<2>& view, int64_t i, int64_t j) {
  if (view.dtype == DType::kF32) return view.at<uint32_t>(i)[j * view.strides[1]];
  return view.at<uint16_t>(i)[j * view.strides[1]];
}

uint32_t half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// Bits of a small integer as a scale.
uint32_t integer_bits(DType dtype, uint32_t value) {
  const auto number = static_cast<float>(value);
  if (dtype == DType::kF32) return std::bit_cast<uint32_t>(number);
  return dtype == DType::kBF16 ? from_float<BF16>(number).bits : from_float<F16>(number).bits;
}

uint32_t nibble(uint32_t word, int64_t i) { return word >> (4 * i) & 15; }

// A source has the code of (row, k), and the bits of the scale and of the zero or minimum of
// (row, group).

struct PlainSource {  // int8 or fp8, one byte each
  const PackQuantParams& p;

  uint32_t code(int64_t row, int64_t k) const { return p.weight.at<uint8_t>(row)[k]; }
  uint32_t scale(int64_t row, int64_t group) const {
    return scale_bits(p.scales, row / p.block_rows, p.is_one_group ? 0 : group);
  }
  uint32_t term(int64_t, int64_t) const { return 0; }
};

// GGUF blocks of 32: fp16 scale, for Q4_1 fp16 minimum, codes; 4 bits: k and k + 16 in a byte.
template <int kBits, bool kHasMins>
struct GgufSource {
  const PackQuantParams& p;
  static constexpr int kHead = kHasMins ? 4 : 2, kBytes = kHead + 4 * kBits;

  const uint8_t* at(int64_t row, int64_t group) const {
    return p.weight.at<uint8_t>(row) + group * kBytes;
  }
  uint32_t code(int64_t row, int64_t k) const {
    const uint8_t* codes = at(row, k / 32) + kHead;
    return kBits == 8 ? codes[k % 32] : nibble(codes[k % 16], k % 32 / 16);
  }
  uint32_t scale(int64_t row, int64_t group) const { return half_at(at(row, group)); }
  uint32_t term(int64_t row, int64_t group) const { return half_at(at(row, group) + 2); }
};

// Of [groups, N] scales and packed zeros, what GPTQ and AWQ share. In a word of eight outputs,
// output i is nibble i, or with AWQ nibble i / 2, + 4 for odd i.
template <bool kIsAwq>
struct GroupedSource {
  const PackQuantParams& p;
  uint32_t zero_bias;  // what the stored zeros lack

  static uint32_t of_outputs(uint32_t word, int64_t row) {
    const int64_t i = row % 8;
    return nibble(word, kIsAwq ? i / 2 + i % 2 * 4 : i);
  }
  uint32_t code(int64_t row, int64_t k) const {
    if (kIsAwq) return of_outputs(p.weight.at<uint32_t>(k)[row / 8], row);
    return nibble(p.weight.at<uint32_t>(k / 8)[row], k % 8);
  }
  int64_t group_of(int64_t group) const { return p.is_one_group ? 0 : group; }
  uint32_t scale(int64_t row, int64_t group) const {
    return scale_bits(p.scales, group_of(group), row);
  }
  uint32_t term(int64_t row, int64_t group) const {
    const uint32_t word = p.zeros.at<uint32_t>(group_of(group))[row / 8 * p.zeros.strides[1]];
    return integer_bits(p.to.quant.scale_dtype, (of_outputs(word, row) + zero_bias) & 15);
  }
};

void store_bits(DType dtype, uint32_t bits, int lane, char* line) {
  if (dtype == DType::kF32) {
    std::memcpy(line + 4 * lane, &bits, 4);
  } else {
    const auto half = static_cast<uint16_t>(bits);
    std::memcpy(line + 2 * lane, &half, 2);
  }
}

template <class Source>
void pack_from(const PackQuantParams& p, const Source& source, int64_t block) {
  const GemmWeight& w = p.to;
  const QuantFormat& quant = w.quant;
  const int bits = quant.bits(), per_word = 32 / bits;
  char* to = static_cast<char*>(p.packed) + block * w.block_bytes();
  for (int64_t first = 0, group = 0; first < w.depth; first += quant.group, ++group) {
    const int64_t num_k = std::min<int64_t>(quant.group, w.depth - first);
    for (int64_t i = 0; i < quant.num_words(num_k); ++i) {
      for (int lane = 0; lane < kBlock; ++lane) {
        const int64_t row = w.row_at(block, lane);
        uint32_t word = 0;
        for (int64_t k = i * per_word; k < (i + 1) * per_word; ++k) {
          const bool is_there = row >= 0 && k < num_k;
          const uint32_t code = is_there ? source.code(row, first + k) : quant.zero_code();
          word |= code << code_shift(bits, k);
        }
        std::memcpy(to + (i * kBlock + lane) * 4, &word, 4);
      }
    }
    to += quant.code_bytes(num_k);
    const bool has_terms = quant.offset != Offset::kNone;
    for (int lane = 0; lane < kBlock; ++lane) {
      const int64_t row = w.row_at(block, lane);
      store_bits(quant.scale_dtype, row < 0 ? 0 : source.scale(row, group), lane, to);
      if (!has_terms) continue;
      const uint32_t term = row < 0 ? 0 : source.term(row, group);
      store_bits(quant.scale_dtype, term, lane, to + quant.line_bytes());
    }
    to += quant.tail_bytes();
  }
}

// The weight itself; rounded at most once.
float quant_value(Offset offset, float c, float scale, float term) {
  switch (offset) {
    case Offset::kZeros: return (c + (8.0f - term)) * scale;
    case Offset::kMins: return std::fma(c + 8.0f, scale, term);
    default: return c * scale;
  }
}

}  // namespace

void pack_quant_block(const PackQuantParams& p, int64_t block) {
  switch (p.source) {
    case QuantSource::kPlain: return pack_from(p, PlainSource{p}, block);
    case QuantSource::kQ8_0: return pack_from(p, GgufSource<8, false>{p}, block);
    case QuantSource::kQ4_0: return pack_from(p, GgufSource<4, false>{p}, block);
    case QuantSource::kQ4_1: return pack_from(p, GgufSource<4, true>{p}, block);
    case QuantSource::kGptq: return pack_from(p, GroupedSource<false>{p, 1}, block);
    case QuantSource::kGptqV2: return pack_from(p, GroupedSource<false>{p, 0}, block);
    case QuantSource::kAwq: return pack_from(p, GroupedSource<true>{p, 0}, block);
  }
}

void unpack_quant_block(const UnpackParams& p, int64_t block) {
  const GemmWeight& w = p.packed;
  const QuantFormat& quant = w.quant;
  const int bits = quant.bits(), per_word = 32 / bits;
  const char* from = static_cast<const char*>(w.data) + block * w.block_bytes();
  for (int64_t first = 0; first < w.depth; first += quant.group) {
    const int64_t num_k = std::min<int64_t>(quant.group, w.depth - first);
    const auto* words = reinterpret_cast<const uint32_t*>(from);
    const char* scales = from + quant.code_bytes(num_k);
    from += quant.group_bytes(num_k);
    for (int lane = 0; lane < kBlock; ++lane) {
      const int64_t row = w.row_at(block, lane);
      if (row < 0) continue;
      float scale = 0.0f, term = 0.0f;
      (void)with_dtype<float, BF16, F16>(quant.scale_dtype, [&]<class T>(std::type_identity<T>) {
        const T* numbers = reinterpret_cast<const T*>(scales) + lane;
        scale = to_float(numbers[0]);
        if (quant.offset != Offset::kNone) term = to_float(numbers[kBlock]);
      });
      float* out = p.out.at<float>(row) + first * p.out.strides[1];
      for (int64_t k = 0; k < num_k; ++k) {
        const uint32_t word = words[k / per_word * kBlock + lane];
        const uint32_t code = word >> code_shift(bits, k) & ((1u << bits) - 1);
        const float c = code_value(quant.codes, code);
        out[k * p.out.strides[1]] = quant_value(quant.offset, c, scale, term);
      }
    }
  }
}

}  // namespace dflash
