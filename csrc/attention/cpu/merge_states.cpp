// merge_states: attention over some keys, and over others, as attention over all of them.
//
// Reference: python/dflash_ops/reference/attention.py

#include <cmath>
#include <limits>

#include "attention/cpu/kernels.h"
#include "common/dispatch.h"
#include "common/expf.h"
#include "common/logf.h"

namespace dflash {

static constexpr float kNothing = -0.0f;  // adding it keeps every bit, also those of -0
static constexpr float kEmpty = -std::numeric_limits<float>::infinity();

namespace {

struct Weights {
  float a, b;  // of the two outputs, relative to exp(top)
  float sum;   // of everything, the sink included
  float lse;
};

// An empty side has weight exactly 0. Without a sink, the other's bits pass through.
Weights weigh(float lse_a, float lse_b, float sink) {
  const float both = lse_a > lse_b ? lse_a : lse_b;
  const float top = sink > both ? sink : both;
  const auto weight = [](float x, float top) { return x == kEmpty ? 0.0f : exp_f32(x - top); };
  const float keys = weight(lse_a, both) + weight(lse_b, both);
  const bool is_one = lse_a == kEmpty || lse_b == kEmpty;
  const float a = weight(lse_a, top), b = weight(lse_b, top);
  return {a, b, a + b + weight(sink, top),
          is_one             ? both
          : std::isnan(keys) ? keys
                             : both + log_f32(keys)};
}

}  // namespace

template <class T>
static void merge_pair(const MergeStatesParams& p, int64_t row, int64_t head, const Weights& w) {
  const T* a = p.out_a.at<T>(row) + head * p.out_a.strides[1];
  const T* b = p.out_b.at<T>(row) + head * p.out_b.strides[1];
  T* out = p.out.at<T>(row) + head * p.out.strides[1];
  for (int64_t col = 0; col < p.v_dim; ++col) {
    const float x = w.a == 0 ? kNothing : to_float(a[col * p.out_a.strides[2]]) * w.a;
    const float y = w.b == 0 ? kNothing : to_float(b[col * p.out_b.strides[2]]) * w.b;
    out[col * p.out.strides[2]] = from_float<T>(w.sum == 0 ? 0.0f : (x + y) / w.sum);
  }
}

void merge_states_cpu(const MergeStatesParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < p.num_heads; ++head) {
      const float lse_a = p.lse_a.at<float>(row)[head * p.lse_a.strides[1]];
      const float lse_b = p.lse_b.at<float>(row)[head * p.lse_b.strides[1]];
      const Weights w = weigh(lse_a, lse_b, sink_of(p.sinks, head));
      p.lse.at<float>(row)[head * p.lse.strides[1]] = w.lse;
      (void)with_dtype<float, BF16, F16>(
          p.out.dtype, [&]<class T>(T) { merge_pair<typename T::type>(p, row, head, w); });
    }
  }
}

}  // namespace dflash
