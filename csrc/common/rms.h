// The root-mean-square norm of one row, in the one order that every CPU op uses.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/dtype.h"

namespace dflash {

// 1 / sqrt(mean(x^2) + eps). Sixteen interleaved chains from zero (element i in chain i mod 16),
// added pairwise: an order that depends on n alone and that any vector width can follow.
template <class T>
static float rms_scale(const T* x, int64_t n, float eps) {
  constexpr int kChains = 16;
  float sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) {
      const float value = to_float(x[i + c]);
      sums[c] += value * value;
    }
  }
  for (int c = 0; i + c < n; ++c) {
    const float value = to_float(x[i + c]);
    sums[c] += value * value;
  }
  for (int width = kChains / 2; width > 0; width /= 2) {
    for (int c = 0; c < width; ++c) sums[c] += sums[c + width];
  }
  return 1.0f / std::sqrt(sums[0] / static_cast<float>(n) + eps);
}

// The normed element: scaled, times the weight in fp32, rounded once by the caller.
static constexpr float rms_apply(float x, float scale, float weight) { return x * scale * weight; }

}  // namespace dflash
