// The sum of a matrix instruction, in three ways. PTX does not say how tensor cores add; results
// that a kernel promises must hold in all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/grid.h"
#include "core/numeric.h"

namespace ptxrun {

// ---- element formats: how many to a register, and their value
struct Bf16Element {
  static constexpr int kPerWord = 2;
  static float value(uint32_t word, int k) { return BFloat::value(word >> (16 * k)); }
};
struct F16Element {
  static constexpr int kPerWord = 2;
  static float value(uint32_t word, int k) {
    return Half::value(static_cast<uint16_t>(word >> (16 * k)));
  }
};
struct Tf32Element {  // the low 13 bits are not looked at
  static constexpr int kPerWord = 1;
  static float value(uint32_t word, int) { return std::bit_cast<float>(word & ~0x1fffu); }
};
template <class Format>
struct Fp8Element {
  static constexpr int kPerWord = 4;
  static float value(uint32_t word, int k) {
    return from_fp8<Format>(static_cast<uint8_t>(word >> (8 * k)));
  }
};
template <class T>
struct ByteElement {
  static constexpr int kPerWord = 4;
  static int32_t value(uint32_t word, int k) { return static_cast<T>(word >> (8 * k)); }
};

// A lane holds row g = lane / 4 and columns from (lane % 4) * n on of each 8 x 4n block.
template <class Element, int kK, class T>
void read_a(Warp& w, const Ref* refs, T (*a)[kK]) {
  constexpr int kN = Element::kPerWord;
  for (int reg = 0; reg < 2 * kK / (4 * kN); ++reg) {
    const uint32_t* words = w.lanes<uint32_t>(refs[reg]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4 + 8 * (reg & 1), k = lane % 4 * kN + (reg >> 1) * 4 * kN;
      for (int i = 0; i < kN; ++i) a[row][k + i] = Element::value(words[lane], i);
    }
  }
}

// One sum of products the way Hopper's units are reported to do it: all terms are aligned to the
// largest, cut off below its 24th bit, added as integers, and cut to float.
inline float truncated_sum(const float* a, const float* b, int stride_b, int count, float c) {
  double largest = std::fabs(c);
  bool is_special = !std::isfinite(c);
  for (int k = 0; k < count; ++k) {
    const double product = static_cast<double>(a[k]) * b[k * stride_b];
    is_special |= !std::isfinite(product);
    largest = std::fmax(largest, std::fabs(product));
  }
  if (is_special || largest == 0) {
    float sum = c;
    for (int k = 0; k < count; ++k) sum += a[k] * b[k * stride_b];
    return canonical(sum);
  }
  const int scale = 24 - std::ilogb(largest);
  auto sum = static_cast<int64_t>(std::ldexp(static_cast<double>(c), scale));
  for (int k = 0; k < count; ++k) {
    sum += static_cast<int64_t>(std::ldexp(static_cast<double>(a[k]) * b[k * stride_b], scale));
  }
  const double exact = std::ldexp(static_cast<double>(sum), -scale);
  auto rounded = static_cast<float>(exact);
  if (std::fabs(static_cast<double>(rounded)) > std::fabs(exact)) {
    rounded = std::nextafter(rounded, 0.0f);
  }
  return rounded;
}

// What a permutation of k depends on: the instruction's kind, not how many rows or columns it has.
inline uint32_t kind_of(std::string_view opcode) {
  uint32_t hash = 2166136261u;
  const size_t m = opcode.find(".m"), k = opcode.find('k', m);
  for (size_t i = 0; i < opcode.size(); ++i) {
    if (i < m || i >= k) hash = (hash ^ static_cast<uint8_t>(opcode[i])) * 16777619u;
  }
  return hash;
}

template <int kK>
std::array<int, kK> order_of_k(MmaMode mode, uint32_t seed) {
  std::array<int, kK> order;
  for (int i = 0; i < kK; ++i) order[i] = i;
  if (mode == MmaMode::kPermuted) {
    for (int i = kK; i > 1; --i) {
      seed = seed * 1664525u + 1013904223u;
      std::swap(order[i - 1], order[(seed >> 8) % i]);
    }
  }
  return order;
}

// c[16][8] += a[16][kK] * b[kK][8]
template <int kK>
void multiply_block(const float (*a)[kK], const float (*b)[8], float (*c)[8], MmaMode mode,
                    uint32_t seed) {
  using Row = float __attribute__((vector_size(32)));
  if (mode == MmaMode::kBlockTruncated) {
    for (int row = 0; row < 16; ++row) {
      for (int n = 0; n < 8; ++n) c[row][n] = truncated_sum(a[row], &b[0][n], 8, kK, c[row][n]);
    }
    return;
  }
  const std::array<int, kK> order = order_of_k<kK>(mode, seed);
  for (int row = 0; row < 16; row += 4) {
    Row sums[4];
    std::memcpy(sums, c[row], sizeof sums);
    for (const int k : order) {
      Row factors;
      std::memcpy(&factors, b[k], sizeof factors);
      for (int r = 0; r < 4; ++r) sums[r] += a[row + r][k] * factors;
    }
    std::memcpy(c[row], sums, sizeof sums);
  }
}

template <int kK>
void multiply_integers(const int32_t (*a)[kK], const int32_t (*b)[8], int32_t (*c)[8],
                       bool saturates) {
  for (int row = 0; row < 16; ++row) {
    for (int n = 0; n < 8; ++n) {
      int64_t sum = c[row][n];
      for (int k = 0; k < kK; ++k) sum += a[row][k] * b[k][n];
      if (saturates) sum = std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX);
      c[row][n] = static_cast<int32_t>(sum);
    }
  }
}

}  // namespace ptxrun
