// Codes of quantised weights as pairs of bf16, which hold them exactly.
#pragma once

#include <cstdint>

#include "gemm/cuda/quant_layout.h"

namespace dflash {

inline constexpr uint32_t kOnePair = 0x3f803f80;

// The pairs of eight codes of 4 bits. 128 has a place for four bits behind it: 128 + q - 136.
__device__ inline void decode_int4(uint32_t word, uint32_t (&pairs)[4]) {
  constexpr uint32_t kMinus136 = 0xc308c308;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t raised = (word >> 4 * i & 0x000f000f) | 0x43004300;
    pairs[i] = fma_pair(raised, kOnePair, kMinus136);
  }
}

// Two codes in the low bytes of the halves. 128 has a place for seven bits behind it, and the
// eighth makes it 256, which is what a negative number has too much.
__device__ inline uint32_t decode_int8_pair(uint32_t codes) {
  constexpr uint32_t kMinusOne = 0xbf80bf80;
  const uint32_t low = (codes & 0x007f007f) | 0x43004300, high = (codes & 0x00800080) | 0x43004300;
  return fma_pair(high, kMinusOne, low);
}

// The exponent of e4m3 counts from 2^-7, that of bf16 from 2^-127; its denormals are denormals
// before the product with 2^120.
__device__ inline uint32_t decode_fp8_pair(uint32_t codes) {
  constexpr uint32_t kTwoTo120 = 0x7b807b80, kMinusZero = 0x80008000, kNan = 0x7fc0;
  const uint32_t magnitude = (codes & 0x007f007f) << 4;
  const uint32_t is_nan = (magnitude + 0x00100010) >> 11 & 0x00010001;  // all ones
  const uint32_t value = magnitude | (codes & 0x00800080) << 8;
  return fma_pair(value, kTwoTo120, kMinusZero) | is_nan * kNan;
}

// The pairs of eight codes of 8 bits: k = 0 .. 3 in the first word.
__device__ inline void decode_8_bits(Codes codes, uint32_t first, uint32_t second,
                                     uint32_t (&pairs)[4]) {
  const uint32_t words[4]{first & 0x00ff00ff, first >> 8 & 0x00ff00ff, second & 0x00ff00ff,
                          second >> 8 & 0x00ff00ff};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = codes == Codes::kInt8 ? decode_int8_pair(words[i]) : decode_fp8_pair(words[i]);
  }
}

// The pairs of eight codes of a lane's 16 bytes: those of the part-th 32 k.
template <int kBits>
__device__ inline void decode_part(Codes codes, const uint4& lane, int part, uint32_t (&pairs)[4]) {
  const uint32_t words[4]{lane.x, lane.y, lane.z, lane.w};
  if constexpr (kBits == 4) {
    decode_int4(words[part], pairs);
  } else {
    decode_8_bits(codes, words[2 * part], words[2 * part + 1], pairs);
  }
}

// The value of code 8, of 4 bits; `term`: the zero or the minimum.
__device__ inline float offset_value(Offset offset, float scale, float term) {
  return offset == Offset::kZeros ? (8.0f - term) * scale : fmaf(8.0f, scale, term);
}

// Chunks of wide groups find the scales where an earlier one has left them.
__device__ inline bool has_new_scales(const QuantFormat& quant, int64_t k, bool is_first) {
  return is_first || (k & (quant.group - 1)) == 0;
}

__device__ inline uint32_t load_word(const char* from, bool is_aligned) {
  if (is_aligned) return *reinterpret_cast<const uint32_t*>(from);
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << 8 * i;
  return word;
}

// The t-th 16 bytes of a row of a tile's chunk, if it is narrow or the weight at an odd address.
// Words that there are not are codes of zero.
__device__ inline uint4 gather_codes(const QuantLayout& layout, const char* chunk, bool is_aligned,
                                     int row, int t, int num_words) {
  const bool is_narrow = num_words < QuantLayout::kChunkWords;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int place = 4 * t + i, word = layout.word_at(place);
    const char* from = chunk + 4 * (row * num_words + (is_narrow ? word : place));
    words[i] = layout.quant.bits() == 4 ? 0x88888888u : 0;
    if (word < num_words) words[i] = load_word(from, is_aligned);
  }
  return {words[0], words[1], words[2], words[3]};
}

// A scale, zero or minimum, of its bits in the low or the high half of a word.
__device__ inline float decode_scale(DType dtype, uint32_t word, bool is_high) {
  if (dtype == DType::kF32) return __uint_as_float(word);
  const auto half = static_cast<uint16_t>(is_high ? word >> 16 : word);
  return dtype == DType::kBF16 ? to_float(BF16{half}) : half_to_float(half);
}

}  // namespace dflash
