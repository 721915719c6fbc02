// log and log(1 - a) in fp32 with the same bits everywhere, in the manner of expf.h.
// Errors (tests/common/test_math.py): at most 1 ulp over the arguments named below.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dflash {

// log(2^exponent * (1 + f)), |f| <= 1/3.
static constexpr float log_reduced(float exponent, float f) {
  constexpr float kLn2High = 0x1.62ep-1f, kLn2Low = 0x1.0bfbe8p-15f;
  // Minimax in relative error: (log(1 + f) - f + f^2 / 2) / f^3.
  float p = -0x1.08064ap-3f;
  p = std::fma(p, f, 0x1.1e66b4p-3f);
  p = std::fma(p, f, -0x1.f310e4p-4f);
  p = std::fma(p, f, 0x1.1ed718p-3f);
  p = std::fma(p, f, -0x1.559dcep-3f);
  p = std::fma(p, f, 0x1.99d028p-3f);
  p = std::fma(p, f, -0x1.fffefp-3f);
  p = std::fma(p, f, 0x1.555506p-2f);
  const float tail = f * f * std::fma(p, f, -0.5f);
  // Small terms first; exponent * kLn2High is exact.
  return std::fma(exponent, kLn2High, f + std::fma(exponent, kLn2Low, tail));
}

// log(x) of a positive normal x.
static constexpr float log_f32(float x) {
  constexpr uint32_t kTwoThirds = 0x3f2aaaab;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent_bits = (bits - kTwoThirds) & 0xff800000;
  const auto exponent = static_cast<int32_t>(exponent_bits) >> 23;
  return log_reduced(static_cast<float>(exponent),
                     std::bit_cast<float>(bits - exponent_bits) - 1.0f);
}

// log(1 - a), 0 <= a <= 1/2. Both forms of f are exact.
static constexpr float log1m_f32(float a) {
  const bool is_small = a <= 1.0f / 3.0f;
  return log_reduced(is_small ? 0.0f : -1.0f, is_small ? -a : std::fma(-2.0f, a, 1.0f));
}

}  // namespace dflash
