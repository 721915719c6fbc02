// The .approx functions: the exact value, moved by up to the error that PTX documents, in a way
// that only depends on the argument's bits. No test can lean on a particular last bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ptxrun::approx {

// In [-1, 1), a function of the bits.
inline double hash(float x) {
  uint32_t h = std::bit_cast<uint32_t>(x) * 0x9e3779b1u;
  h = (h ^ h >> 15) * 0x85ebca77u;
  h = (h ^ h >> 13) * 0xc2b2ae3du;
  h ^= h >> 16;
  return static_cast<double>(h) * 0x1p-31 - 1.0;
}

// `ulps` of the result; exact results at special arguments stay as they are.
inline float moved(double exact, float argument, bool perturbs, double ulps) {
  const auto x = static_cast<float>(exact);
  const auto bits = std::bit_cast<uint32_t>(x) & 0x7fffffff;
  const uint64_t exponent = std::max(bits >> 23, 1u);  // biased; of subnormals that of the least
  const auto ulp = std::bit_cast<double>((exponent - 127 - 23 + 1023) << 52);
  const auto near = static_cast<float>(exact + hash(argument) * (ulps - 0.5) * ulp);
  return perturbs & (bits != 0) & (bits < 0x7f800000) ? near : x;
}

// 2^x within 1e-11 of it: x cut at +-200, where float has ended, and a Taylor series of the rest.
inline double power_of_2(float x) {
  constexpr double kLn2 = 0.693147180559945309417, kShift = 0x1.8p52;
  const double bounded = x > 200 ? 200.0 : x < -200 ? -200.0 : static_cast<double>(x);
  const double shifted = bounded + kShift;  // the nearest integer is in its low bits
  const double rest = (bounded - (shifted - kShift)) * kLn2;
  double sum = 1;
  _Pragma("GCC unroll 11") for (int i = 11; i > 0; --i) sum = sum * rest * (1.0 / i) + 1;
  const uint64_t whole = std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kShift);
  return sum * std::bit_cast<double>((whole + 1023) << 52);
}

inline constexpr auto reciprocal = [](float x, bool p) {
  return std::bit_cast<uint32_t>(x) << 9 == 0 ? 1 / x : moved(1.0 / x, x, p, 1);
};
inline constexpr auto square_root = [](float x, bool p) {
  const double root = std::sqrt(static_cast<double>(x));
  return std::isnan(root) || root == 0 ? static_cast<float>(root) : moved(root, x, p, 2);
};
inline constexpr auto reciprocal_root = [](float x, bool p) {
  if (x == 0) return std::copysign(INFINITY, x);
  return moved(1.0 / std::sqrt(static_cast<double>(x)), x, p, 2);
};
inline constexpr auto exp2 = [](float x, bool p) {
  return moved(power_of_2(x), x, p & (x != std::floor(x)), 2);
};
inline constexpr auto log2 = [](float x, bool p) {
  if (x == 0) return -INFINITY;
  const double y = std::log2(static_cast<double>(x));
  if (y == 0 || !std::isfinite(y)) return static_cast<float>(y);
  // Near 1 the bound is absolute: 2^-22.
  return p ? static_cast<float>(y + hash(x) * std::max(0x1p-23, std::fabs(y) * 0x1p-24))
           : static_cast<float>(y);
};
inline constexpr auto sine = [](float x, bool p) {
  return static_cast<float>(std::sin(static_cast<double>(x)) +
                            (p && x != 0 ? hash(x) * 0x1p-21 : 0));
};
inline constexpr auto cosine = [](float x, bool p) {
  return static_cast<float>(std::cos(static_cast<double>(x)) + (p ? hash(x) * 0x1p-21 : 0));
};
inline constexpr auto tanh = [](float x, bool p) {  // relative 2^-11
  const double y = std::tanh(static_cast<double>(x));
  return static_cast<float>(p ? y * (1 + hash(x) * 0x1p-12) : y);
};
inline float divide(float a, float b, bool p) {  // 2 ulp; the denominator's far ends give 0
  const double y = static_cast<double>(a) / b;
  if (std::fabs(b) > 0x1p126f && std::isfinite(b))
    return std::isinf(a) ? NAN : std::copysign(0.0f, static_cast<float>(y));
  return y == 0 || a == b ? static_cast<float>(y) : moved(y, a + b, p, 2);
}

}  // namespace ptxrun::approx
