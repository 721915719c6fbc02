// How block_conv rounds its sums, in every backend.
#pragma once

#include "common/dtype.h"

namespace dflash {

// fp16 has little range: what fp32 still held saturates instead of becoming infinite.
static constexpr float saturated(float value) {
  constexpr float kLargest = 65504.0f, kMostFinite = 0x1.fffffep127f;
  if (value > kLargest && value <= kMostFinite) return kLargest;
  if (value < -kLargest && value >= -kMostFinite) return -kLargest;
  return value;
}

template <class T>
static constexpr T rounded(float value) {
  if constexpr (std::is_same_v<T, F16>) value = saturated(value);
  return from_float<T>(value);
}

}  // namespace dflash
