// Numbers narrower than float, and what PTX says about NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ptxrun {

struct Half {
  using Bits = uint16_t;
  static float value(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
  static uint16_t rounded(float x) {
    return std::isnan(x) ? 0x7fff : std::bit_cast<uint16_t>(static_cast<_Float16>(x));
  }
  static uint16_t rounded(double x) {
    return std::isnan(x) ? 0x7fff : std::bit_cast<uint16_t>(static_cast<_Float16>(x));
  }
};

struct BFloat {
  using Bits = uint16_t;
  static float value(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static uint16_t rounded(float x) {
    if (std::isnan(x)) return 0x7fff;
    const auto bits = std::bit_cast<uint32_t>(x);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static uint16_t rounded(double x) {  // once: a tie in float is decided by what float has lost
    const auto nearest = static_cast<float>(x);
    auto bits = std::bit_cast<uint32_t>(nearest);
    if ((bits & 0xffff) == 0x8000 && static_cast<double>(nearest) != x) {
      bits += std::fabs(static_cast<double>(nearest)) > std::fabs(x) ? -1u : 1u;
    }
    return rounded(std::bit_cast<float>(bits));
  }
};

// Values that cross instructions have one NaN only.
inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(0x7fffffffu); }
inline double canonical(double x) {
  return x == x ? x : std::bit_cast<double>(0x7fffffffffffffffull);
}

// min and max: -0 < +0; NaN loses against a number, unless it must win (.NaN). Free of branches.
template <class T>
T lesser(T a, T b, bool nan_wins) {
  const bool has_nan = (a != a) | (b != b);
  const bool is_a = (a < b) | (b != b) | ((a == b) & std::signbit(a));
  const T least = is_a ? a : b;
  return has_nan & nan_wins ? canonical(a + b) : canonical(least);
}
template <class T>
T greater(T a, T b, bool nan_wins) {
  return -lesser<T>(-a, -b, nan_wins);
}

// 8-bit floats. e4m3 has no infinity: 0x7f is NaN. Conversions saturate to the largest number.
struct E4M3 {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr float kMax = 448.0f;
};
struct E5M2 {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr float kMax = 57344.0f;
};

template <class F>
uint8_t to_fp8(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return 0x7f;
  const float magnitude = std::fabs(x);
  if (magnitude >= F::kMax) return sign | (F::kMantissa == 3 ? 0x7e : 0x7b);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int least = 1 - F::kBias;
  const int scale = std::max(exponent - 1, least) - F::kMantissa;  // of one unit in the last place
  const float units = std::nearbyint(std::ldexp(magnitude, -scale));
  const float rounded = std::ldexp(units, scale);
  if (rounded >= F::kMax) return sign | (F::kMantissa == 3 ? 0x7e : 0x7b);
  if (rounded == 0.0f) return sign;
  std::frexp(rounded, &exponent);
  const int field = exponent - 1 < least ? 0 : exponent - 1 + F::kBias;
  const float fraction = std::ldexp(rounded, F::kMantissa - std::max(exponent - 1, least));
  const auto mantissa = static_cast<int>(fraction) - (field == 0 ? 0 : 1 << F::kMantissa);
  return static_cast<uint8_t>(sign | field << F::kMantissa | mantissa);
}

template <class F>
float from_fp8(uint8_t bits) {
  const int field = (bits & 0x7f) >> F::kMantissa, mantissa = bits & ((1 << F::kMantissa) - 1);
  const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
  if (F::kMantissa == 3 && (bits & 0x7f) == 0x7f) return NAN;
  if (F::kMantissa == 2 && field == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  if (field == 0)
    return sign * std::ldexp(static_cast<float>(mantissa), 1 - F::kBias - F::kMantissa);
  return sign * std::ldexp(static_cast<float>(mantissa + (1 << F::kMantissa)),
                           field - F::kBias - F::kMantissa);
}

}  // namespace ptxrun
