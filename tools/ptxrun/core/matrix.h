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

// ---- element formats: how they lie in a register, and their value
struct Bf16Element {
  using Stored = uint16_t;
  static float value(Stored x) { return BFloat::value(x); }
};
struct F16Element {
  using Stored = uint16_t;
  // By the bits, so that many are done at once: a half is a float whose exponent is off by 112.
  static float value(Stored x) {
    const uint32_t magnitude = uint32_t{x & 0x7fffu} << 13;
    const auto finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t bits = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000u : finite;
    return std::bit_cast<float>(bits | uint32_t{x & 0x8000u} << 16);
  }
};
struct Tf32Element {  // the low 13 bits are not looked at
  using Stored = uint32_t;
  static float value(Stored x) { return std::bit_cast<float>(x & ~0x1fffu); }
};
template <class Format>
struct Fp8Element {
  using Stored = uint8_t;
  static float value(Stored x) { return kValues[x]; }

 private:
  static inline const std::array<float, 256> kValues = [] {
    std::array<float, 256> values;
    for (int x = 0; x < 256; ++x) values[x] = from_fp8<Format>(static_cast<uint8_t>(x));
    return values;
  }();
};
template <class T>
struct ByteElement {
  using Stored = T;
  static int32_t value(Stored x) { return x; }
};
template <class Element>
inline constexpr int kPerWord = 4 / sizeof(typename Element::Stored);

// ---- fragments: the register of lane 4g + t is column t of row g of a matrix of 8 x 4 words
using Words = uint32_t __attribute__((vector_size(64)));

// 32 words: the first 16 of `to` are those that `places` names, the others stand `step` further.
inline void shuffle(const uint32_t* from, uint32_t* to, const Words& places, uint32_t step) {
  Words low, high;
  std::memcpy(&low, from, sizeof low);
  std::memcpy(&high, from + 16, sizeof high);
  const Words first = __builtin_shuffle(low, high, places);
  const Words second = __builtin_shuffle(low, high, places + step);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + 16, &second, sizeof second);
}
// 8 rows of 4 words -> 4 of 8, and back.
inline void transpose(const uint32_t* rows, uint32_t* columns) {
  shuffle(rows, columns, Words{0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29}, 2);
}
inline void transpose_back(const uint32_t* columns, uint32_t* rows) {
  shuffle(columns, rows, Words{0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27}, 4);
}

// Registers of A: rows 0 to 7 and 8 to 15 of the first 4 words of k, then of the next.
template <class Element, int kK, class T>
void read_a(Warp& w, const Ref* refs, T (*a)[kK]) {
  constexpr int kRow = 4 * kPerWord<Element>;
  for (int reg = 0; reg < 2 * kK / kRow; ++reg) {
    const auto* elements = w.lanes<typename Element::Stored>(refs[reg]);
    T values[8 * kRow];
    for (int i = 0; i < 8 * kRow; ++i) values[i] = Element::value(elements[i]);
    for (int row = 0; row < 8; ++row) {
      T* to = &a[row + 8 * (reg & 1)][(reg >> 1) * kRow];
      std::memcpy(to, values + row * kRow, kRow * sizeof(T));
    }
  }
}

// A 16 x 8 block of sums: rows 0 to 7 and 8 to 15, of two columns each; `kHalf`: both in a word.
template <bool kHalf, class T>
void read_sums(Warp& w, const Ref* refs, T (*c)[8]) {
  for (int high = 0; high < 2; ++high) {
    T* to = c[8 * high];
    if constexpr (kHalf) {
      const auto* halves = w.lanes<uint16_t>(refs[high]);
      for (int i = 0; i < 64; ++i) to[i] = F16Element::value(halves[i]);
    } else {
      const T *even = w.lanes<T>(refs[2 * high]), *odd = w.lanes<T>(refs[2 * high + 1]);
      for (int lane = 0; lane < kLanes; ++lane) {
        to[2 * lane] = even[lane];
        to[2 * lane + 1] = odd[lane];
      }
    }
  }
}
template <bool kHalf, class T>
void write_sums(Warp& w, const Ref* refs, const T (*c)[8]) {
  for (int high = 0; high < 2; ++high) {
    const T* from = c[8 * high];
    if constexpr (kHalf) {
      auto* halves = w.lanes<uint16_t>(refs[high]);
      for (int i = 0; i < 64; ++i) halves[i] = Half::rounded(from[i]);
    } else {
      T *even = w.lanes<T>(refs[2 * high]), *odd = w.lanes<T>(refs[2 * high + 1]);
      for (int lane = 0; lane < kLanes; ++lane) {
        even[lane] = from[2 * lane];
        odd[lane] = from[2 * lane + 1];
      }
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
std::array<int, kK> order_of_k(uint32_t seed) {
  std::array<int, kK> order;
  for (int i = 0; i < kK; ++i) order[i] = i;
  for (int i = kK; i > 1; --i) {
    seed = seed * 1664525u + 1013904223u;
    std::swap(order[i - 1], order[(seed >> 8) % i]);
  }
  return order;
}

// c[16][8] += a[16][kK] * b[kK][8], in the order of k that k_at gives. Eight rows at a time: as
// many sums as hide the latency of one.
template <int kK, class F>
void accumulate(const float (*a)[kK], const float (*b)[8], float (*c)[8], F&& k_at) {
  using Row = float __attribute__((vector_size(32)));
  for (int row = 0; row < 16; row += 8) {
    Row sums[8];
    std::memcpy(sums, c[row], sizeof sums);
    for (int i = 0; i < kK; ++i) {
      const int k = k_at(i);
      Row factors;
      std::memcpy(&factors, b[k], sizeof factors);
      for (int r = 0; r < 8; ++r) sums[r] += a[row + r][k] * factors;
    }
    std::memcpy(c[row], sums, sizeof sums);
  }
}

template <int kK>
void multiply_block(const float (*a)[kK], const float (*b)[8], float (*c)[8], MmaMode mode,
                    uint32_t seed) {
  if (mode == MmaMode::kBlockTruncated) {
    for (int row = 0; row < 16; ++row) {
      for (int n = 0; n < 8; ++n) c[row][n] = truncated_sum(a[row], &b[0][n], 8, kK, c[row][n]);
    }
  } else if (mode == MmaMode::kPermuted) {
    accumulate<kK>(a, b, c, [order = order_of_k<kK>(seed)](int i) { return order[i]; });
  } else {
    accumulate<kK>(a, b, c, [](int i) { return i; });
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
