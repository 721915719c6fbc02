// What two attention states weigh in their merge: the same arithmetic in every backend.
#pragma once

#include <limits>

#include "common/expf.h"
#include "common/logf.h"

namespace dflash {

static constexpr float kEmpty = -std::numeric_limits<float>::infinity();

struct MergeWeights {
  float a, b;  // of the two outputs, relative to exp(top)
  float sum;   // of everything, the sink included
  float lse;

  // The merged output of elements x and y. An empty side is not looked at.
  constexpr float merge(float x, float y) const {
    constexpr float kNothing = -0.0f;  // adding it keeps every bit, also those of -0
    const float from_a = a == 0 ? kNothing : x * a;
    const float from_b = b == 0 ? kNothing : y * b;
    return sum == 0 ? 0.0f : (from_a + from_b) / sum;
  }
};

static constexpr float merge_weight(float lse, float top) {
  return lse == kEmpty ? 0.0f : exp_f32(lse - top);
}

// An empty side has weight exactly 0. Without a sink, the other's bits pass through.
static constexpr MergeWeights merge_weights(float lse_a, float lse_b, float sink) {
  const float both = lse_a > lse_b ? lse_a : lse_b;
  const float top = sink > both ? sink : both;
  const float keys = merge_weight(lse_a, both) + merge_weight(lse_b, both);
  const bool is_one = lse_a == kEmpty || lse_b == kEmpty, is_nan = keys != keys;
  const float a = merge_weight(lse_a, top), b = merge_weight(lse_b, top);
  return {a, b, a + b + merge_weight(sink, top),
          is_one   ? both
          : is_nan ? keys
                   : both + log_f32(keys)};
}

}  // namespace dflash
