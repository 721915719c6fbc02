// Element types as kernels see them, and their scalar conversions: exact to float, round to nearest
// even from float. Checked for every 16- and 8-bit pattern against torch: tests/common/.
//
// Everything here is `static`: files for different instruction sets include it, and a shared inline
// copy that was compiled for a newer one could be linked into all of them.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace dflash {

enum class DType : int32_t { kF32, kBF16, kF16, kF8E4M3, kF8E5M2, kI8 };

// Of an element of kF32, kBF16 or kF16.
static constexpr int64_t float_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct F8E4M3 {  // 4 exponent bits, 3 mantissa bits, no infinity: all ones is NaN (OCP e4m3fn)
  uint8_t bits;
};
struct F8E5M2 {
  uint8_t bits;
};

// A float of `kMantissa` mantissa bits and exponent bias `kBias`, from its bits without the sign.
template <int kMantissa, int kBias>
static constexpr float small_to_float(uint32_t magnitude) {
  const uint32_t exponent = magnitude >> kMantissa;
  const uint32_t mantissa = magnitude & ((1u << kMantissa) - 1);
  if (exponent == 0) {  // denormal: mantissa * 2^(1 - bias - kMantissa), exact in float
    return static_cast<float>(mantissa) *
           std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);
  }
  return std::bit_cast<float>((exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissa));
}

// The reverse, rounding to nearest even. What is too large comes out above the largest finite bits.
template <int kMantissa, int kBias>
static constexpr uint32_t small_from_float(uint32_t magnitude) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - kBias) << 23;
  if (magnitude < kMinNormal) {  // denormal: an integer number of the smallest step
    const int exponent = static_cast<int>(magnitude >> 23);
    const int shift = kShift + 1 + (127 - kBias) - exponent;
    if (exponent == 0 || shift > 25) return 0;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t half = (1u << (shift - 1)) - 1 + (mantissa >> shift & 1);
    return (mantissa + half) >> shift;
  }
  const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1);
  return (rounded >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
}

static constexpr float to_float(float value) { return value; }
static constexpr float to_float(int8_t value) { return value; }
static constexpr float to_float(BF16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
static constexpr float with_sign(float magnitude, bool is_negative) {
  return is_negative ? -magnitude : magnitude;
}
static constexpr float to_float(F16 value) {
  const uint32_t magnitude = value.bits & 0x7fff;
  const float result = magnitude >= 0x7c00
                           ? std::bit_cast<float>(0x7f800000 | (magnitude & 0x3ff) << 13)
                           : small_to_float<10, 15>(magnitude);
  return with_sign(result, value.bits >> 15);
}
static constexpr float to_float(F8E5M2 value) {
  return to_float(F16{static_cast<uint16_t>(value.bits << 8)});  // its upper half
}
static constexpr float to_float(F8E4M3 value) {
  const uint32_t magnitude = value.bits & 0x7f;
  const float result =
      magnitude == 0x7f ? std::bit_cast<float>(0x7fc00000) : small_to_float<3, 7>(magnitude);
  return with_sign(result, value.bits >> 7);
}

// Rounds to the nearest T, ties to even. F16, BF16 and F8E5M2 overflow to infinity; F8E4M3 and
// int8, which have none, saturate, as KV quantisation wants. NaN stays NaN (int8: 0).
template <class T>
static constexpr T from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const bool is_nan = magnitude > 0x7f800000;
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, BF16>) {
    if (is_nan) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  } else if constexpr (std::is_same_v<T, F16>) {
    const uint32_t sign = bits >> 16 & 0x8000;
    if (is_nan) return {static_cast<uint16_t>(sign | 0x7e00)};
    const uint32_t rounded = magnitude >= 0x47800000 ? 0x7c00 : small_from_float<10, 15>(magnitude);
    return {static_cast<uint16_t>(sign | rounded)};
  } else if constexpr (std::is_same_v<T, F8E5M2>) {
    const uint32_t sign = bits >> 24 & 0x80;
    if (is_nan) return {static_cast<uint8_t>(sign | 0x7f)};
    const uint32_t rounded = magnitude >= 0x47800000 ? 0x7c : small_from_float<2, 15>(magnitude);
    return {static_cast<uint8_t>(sign | rounded)};
  } else if constexpr (std::is_same_v<T, F8E4M3>) {
    const uint32_t sign = bits >> 24 & 0x80;
    if (is_nan) return {static_cast<uint8_t>(sign | 0x7f)};
    constexpr uint32_t kMaxFloat = 0x43e00000;  // 448, bits 0x7e
    const uint32_t rounded = magnitude >= kMaxFloat ? 0x7e : small_from_float<3, 7>(magnitude);
    return {static_cast<uint8_t>(sign | rounded)};
  } else {
    static_assert(std::is_same_v<T, int8_t>);
    if (is_nan) return 0;
    const float clamped = value < -128.0f ? -128.0f : value > 127.0f ? 127.0f : value;
    const float shifted = clamped + 12582912.0f;  // 1.5 * 2^23: the sum's last bit is the unit
    return static_cast<int8_t>(static_cast<int32_t>(shifted - 12582912.0f));
  }
}

}  // namespace dflash
