// How a quantised weight stands in memory, and what its codes mean: no torch, no CUDA.
#pragma once

#include "common/dtype.h"

namespace dflash {

enum class Codes : int32_t { kNone, kInt4, kInt8, kF8E4M3 };

// What turns code * scale into the value (q: a 4-bit code, 0 .. 15):
//   kNone    c * s             c: the int8 or fp8 number, or q - 8
//   kZeros   (q - z) * s       z: an integer
//   kMins    q * s + m
enum class Offset : int32_t { kNone, kZeros, kMins };

// A packed block holds 32 outputs, group after group of `group` k (the last may have fewer):
//   codes    [ceil(k / (32 / bits))][32] words; pair i of a word has its even k at bit
//            16 + bits * i, its odd k at bit bits * i
//   scales   [32]
//   zeros or mins, if there are any: [32], of the scales' type
// Missing k and missing outputs have code 0 (4 bits: 8) and scale 0: they add nothing.
struct QuantFormat {
  static constexpr int kLanes = 32;  // outputs in a block

  Codes codes = Codes::kNone;
  Offset offset = Offset::kNone;
  DType scale_dtype = DType::kF32;
  int32_t group = 0;  // k that share a scale

  constexpr explicit operator bool() const { return codes != Codes::kNone; }
  constexpr int bits() const { return codes == Codes::kInt4 ? 4 : 8; }
  constexpr int64_t num_groups(int64_t depth) const { return (depth + group - 1) / group; }
  constexpr int64_t num_words(int64_t num_k) const {
    return (num_k + 32 / bits() - 1) / (32 / bits());
  }
  constexpr int64_t code_bytes(int64_t num_k) const { return num_words(num_k) * kLanes * 4; }
  constexpr int64_t line_bytes() const { return kLanes * float_bytes(scale_dtype); }
  constexpr int64_t tail_bytes() const {  // of what follows a group's codes
    return line_bytes() * (offset == Offset::kNone ? 1 : 2);
  }
  constexpr int64_t group_bytes(int64_t num_k) const { return code_bytes(num_k) + tail_bytes(); }
  constexpr int64_t block_bytes(int64_t depth) const {  // groups are of whole words
    return code_bytes(depth) + num_groups(depth) * tail_bytes();
  }
  // The code of zero.
  constexpr uint32_t zero_code() const { return codes == Codes::kInt4 ? 8 : 0; }
};

// Where the code of k (within its group) stands in its word.
static constexpr int code_shift(int bits, int64_t k) {
  const int per_word = 32 / bits, i = static_cast<int>(k % per_word);
  return i / 2 * bits + (i % 2 == 0 ? 16 : 0);
}

// Every other byte, or nibble, of a word, from the lowest on, side by side.
static constexpr uint32_t even_bytes(uint32_t x) {
  x &= 0x00ff00ff;
  return (x | x >> 8) & 0xffff;
}
static constexpr uint32_t even_nibbles(uint32_t x) {
  x &= 0x0f0f0f0f;
  return even_bytes(x | x >> 4);
}

// Codes of consecutive k, the first one lowest, as they stand in a word.
static constexpr uint32_t word_of_codes(int bits, uint32_t codes) {
  const auto even = [bits](uint32_t x) { return bits == 4 ? even_nibbles(x) : even_bytes(x); };
  return even(codes) << 16 | even(codes >> bits);
}

// c of a code; exact in bf16.
static constexpr float code_value(Codes codes, uint32_t code) {
  switch (codes) {
    case Codes::kInt4: return static_cast<float>(static_cast<int>(code) - 8);
    case Codes::kInt8: return to_float(static_cast<int8_t>(code));
    default: return to_float(F8E4M3{static_cast<uint8_t>(code)});
  }
}

}  // namespace dflash
