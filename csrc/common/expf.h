// exp and tanh in fp32 with the same bits everywhere: every op and device class that needs them
// calls these. IEEE operations in a fixed order, no table, no branch, so compilers vectorise them.
//
// Errors (tests/common/test_math.py): exp at most 1.01 ulp, tanh at most 1.34 ulp.
//
// Everything is `static` for the reason given in dtype.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dflash {

static constexpr float select_f32(bool condition, float yes, float no) {
  return condition ? yes : no;
}

static constexpr float power_of_two(uint32_t exponent) {  // -126 .. 127, as two's complement
  return std::bit_cast<float>((exponent + 127) << 23);
}

struct Exp {  // what it is made of, for loops over vectors too
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kLn2High = 0x1.62ep-1f, kLn2Low = 0x1.0bfbe8p-15f;
  // Minimax in relative error: (exp(r) - 1 - r) / r^2, by the power of r in exp(r).
  static constexpr float kTo6 = 0x1.6a23e6p-10f, kTo5 = 0x1.123a1ep-7f, kTo4 = 0x1.5558f2p-5f;
  static constexpr float kTo3 = 0x1.555492p-3f, kTo2 = 0x1.fffffcp-2f;
};

// e^x for x from -105 to 89, or NaN.
static constexpr float exp_in_range(float x) {
  const float shifted = std::fma(x, Exp::kLog2E, Exp::kRound);
  const float n = shifted - Exp::kRound;
  const float r = std::fma(n, -Exp::kLn2Low, std::fma(n, -Exp::kLn2High, x));  // |r| <= ln(2) / 2
  float p = std::fma(Exp::kTo6, r, Exp::kTo5);
  p = std::fma(p, r, Exp::kTo4);
  p = std::fma(p, r, Exp::kTo3);
  p = std::fma(p, r, Exp::kTo2);
  const float y = 1.0f + std::fma(r * r, p, r);

  // 2^n in two factors: n reaches -151 and 128, and only the last product rounds.
  const uint32_t n_bits = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(Exp::kRound);
  const uint32_t half = (n_bits >> 1) | (n_bits & 0x80000000);
  return y * power_of_two(half) * power_of_two(n_bits - half);
}

// e^x; exp(-inf) = 0, exp(inf) = inf, NaN stays NaN; results below the normal numbers are rounded
// like any other.
static constexpr float exp_f32(float x) {
  x = select_f32(x < -105.0f, -105.0f, x);  // still 0
  x = select_f32(x > 89.0f, 89.0f, x);      // still inf
  return exp_in_range(x);
}

// The same for an x that is not positive. GCC makes one instruction of one bound, eight of two.
static constexpr float exp_not_positive(float x) {
  return exp_in_range(select_f32(x < -105.0f, -105.0f, x));
}

static constexpr float tanh_f32(float x) {
  const float magnitude = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffff);
  // Minimax in relative error on |x| < 0.625: (tanh(x) - x) / x^3 as a polynomial in x^2.
  const float u = magnitude * magnitude;
  float p = -0x1.75e1e4p-8f;
  p = std::fma(p, u, 0x1.5226a2p-6f);
  p = std::fma(p, u, -0x1.b83c5cp-5f);
  p = std::fma(p, u, 0x1.110726p-3f);
  p = std::fma(p, u, -0x1.555532p-2f);
  const float near = std::fma(magnitude * u, p, magnitude);
  const float far = 1.0f - 2.0f / (exp_f32(2.0f * magnitude) + 1.0f);
  const float result = select_f32(magnitude < 0.625f, near, far);
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(result) | sign);
}

}  // namespace dflash
