// How a KV cache of 8-bit elements stores a value: the same arithmetic in every backend.
#pragma once

#include <cfloat>

#include "common/dtype.h"

namespace dflash {

// The largest finite magnitude of a quantised type; 0 for one that is not.
template <class T>
static constexpr float largest_of() {
  if constexpr (std::is_same_v<T, F8E4M3>) return 448.0f;
  if constexpr (std::is_same_v<T, F8E5M2>) return 57344.0f;
  if constexpr (std::is_same_v<T, int8_t>) return 127.0f;
  return 0.0f;
}

// The scale that maps the largest finite magnitude of a row to the format's. Never 0 or denormal,
// so that a row of zeros divides.
static constexpr float dynamic_scale(float amax, float largest) {
  const float scale = amax / largest;
  return scale > FLT_MIN ? scale : FLT_MIN;
}

template <class T>
static constexpr T quantise(float value, float scale) {
  constexpr float kLargest = largest_of<T>();
  const float x = value / scale;  // clamped so that NaN stays NaN
  return from_float<T>(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
}

}  // namespace dflash
