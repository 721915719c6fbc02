// Quantised weights as their makers write them: the codes, scales and offsets of any (row, k).
#pragma once

#include <bit>

#include "gemm/params.h"

namespace dflash {

// Bits of number (i, j) of a 16-bit or fp32 tensor.
static constexpr uint32_t scale_bits(const ArrayView<2>& view, int64_t i, int64_t j) {
  if (view.dtype == DType::kF32) return view.at<uint32_t>(i)[j * view.strides[1]];
  return view.at<uint16_t>(i)[j * view.strides[1]];
}

// Bits of a small integer as a scale.
static constexpr uint32_t integer_bits(DType dtype, uint32_t value) {
  const auto number = static_cast<float>(value);
  if (dtype == DType::kF32) return std::bit_cast<uint32_t>(number);
  return dtype == DType::kBF16 ? from_float<BF16>(number).bits : from_float<F16>(number).bits;
}

static constexpr uint32_t nibble(uint32_t word, int64_t i) { return word >> (4 * i) & 15; }

// A source has the code of (row, k); those of as many k from there on as a word holds, the first
// one lowest; and the bits of the scale and of the zero or minimum of (row, group).

static constexpr uint32_t four_bytes(const uint8_t* bytes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(bytes[i]) << 8 * i;
  return word;
}

struct PlainSource {  // int8 or fp8, one byte each
  const PackQuantParams& p;

  constexpr uint32_t code(int64_t row, int64_t k) const { return p.weight.at<uint8_t>(row)[k]; }
  constexpr uint32_t codes(int64_t row, int64_t k) const {
    return four_bytes(p.weight.at<uint8_t>(row) + k);
  }
  constexpr uint32_t scale(int64_t row, int64_t group) const {
    return scale_bits(p.scales, row / p.block_rows, p.is_one_group ? 0 : group);
  }
  constexpr uint32_t term(int64_t, int64_t) const { return 0; }
};

// GGUF blocks of 32: fp16 scale, for Q4_1 fp16 minimum, codes; 4 bits: k and k + 16 in a byte.
template <int kBits, bool kHasMins>
struct GgufSource {
  const PackQuantParams& p;
  static constexpr int kHead = kHasMins ? 4 : 2, kBytes = kHead + 4 * kBits;

  constexpr const uint8_t* at(int64_t row, int64_t group) const {
    return p.weight.at<uint8_t>(row) + group * kBytes;
  }
  static constexpr uint32_t half_at(const uint8_t* bytes) {  // blocks stand at any address
    return static_cast<uint32_t>(bytes[0] | bytes[1] << 8);
  }
  constexpr uint32_t code(int64_t row, int64_t k) const {
    const uint8_t* codes = at(row, k / 32) + kHead;
    return kBits == 8 ? codes[k % 32] : nibble(codes[k % 16], k % 32 / 16);
  }
  constexpr uint32_t codes(int64_t row, int64_t k) const {
    const uint8_t* from = at(row, k / 32) + kHead;
    if (kBits == 8) return four_bytes(from + k % 32);
    const auto nibbles = [&](int64_t i) {
      return even_nibbles(four_bytes(from + k % 16 + i) >> (k % 32 / 16 * 4));
    };
    return nibbles(0) | nibbles(4) << 16;
  }
  constexpr uint32_t scale(int64_t row, int64_t group) const { return half_at(at(row, group)); }
  constexpr uint32_t term(int64_t row, int64_t group) const { return half_at(at(row, group) + 2); }
};

// Of [groups, N] scales and packed zeros, what GPTQ and AWQ share. In a word of eight outputs,
// output i is nibble i, or with AWQ nibble i / 2, + 4 for odd i.
template <bool kIsAwq>
struct GroupedSource {
  const PackQuantParams& p;
  uint32_t zero_bias;  // what the stored zeros lack

  static constexpr uint32_t of_outputs(uint32_t word, int64_t row) {
    const int64_t i = row % 8;
    return nibble(word, kIsAwq ? i / 2 + i % 2 * 4 : i);
  }
  constexpr uint32_t code(int64_t row, int64_t k) const {
    if (kIsAwq) return of_outputs(p.weight.at<uint32_t>(k)[row / 8], row);
    return nibble(p.weight.at<uint32_t>(k / 8)[row], k % 8);
  }
  constexpr uint32_t codes(int64_t row, int64_t k) const {
    if (!kIsAwq) return p.weight.at<uint32_t>(k / 8)[row];
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i) word |= code(row, k + i) << 4 * i;
    return word;
  }
  constexpr int64_t group_of(int64_t group) const { return p.is_one_group ? 0 : group; }
  constexpr uint32_t scale(int64_t row, int64_t group) const {
    return scale_bits(p.scales, group_of(group), row);
  }
  constexpr uint32_t term(int64_t row, int64_t group) const {
    const uint32_t word = p.zeros.at<uint32_t>(group_of(group))[row / 8 * p.zeros.strides[1]];
    return integer_bits(p.to.quant.scale_dtype, (of_outputs(word, row) + zero_bias) & 15);
  }
};

// Calls f(source).
template <class F>
static constexpr void with_source(const PackQuantParams& p, F f) {
  switch (p.source) {
    case QuantSource::kPlain: return f(PlainSource{p});
    case QuantSource::kQ8_0: return f(GgufSource<8, false>{p});
    case QuantSource::kQ4_0: return f(GgufSource<4, false>{p});
    case QuantSource::kQ4_1: return f(GgufSource<4, true>{p});
    case QuantSource::kGptq: return f(GroupedSource<false>{p, 1});
    case QuantSource::kGptqV2: return f(GroupedSource<false>{p, 0});
    case QuantSource::kAwq: return f(GroupedSource<true>{p, 0});
  }
}

// The weight itself; rounded at most once.
static constexpr float quant_value(Offset offset, float c, float scale, float term) {
  switch (offset) {
    case Offset::kZeros: return (c + (8.0f - term)) * scale;
    case Offset::kMins: return (c + 8.0f) * scale + term;  // of fp16: the product is exact
    default: return c * scale;
  }
}

}  // namespace dflash
