// merge_states: attention over some keys, and over others, as attention over all of them.
//
// Reference: python/dflash_ops/reference/attention.py

#include "attention/cpu/kernels.h"
#include "attention/merge.h"
#include "common/dispatch.h"

namespace dflash {

template <class T>
static void merge_pair(const MergeStatesParams& p, int64_t row, int64_t head,
                       const MergeWeights& w) {
  const T* a = p.out_a.at<T>(row) + head * p.out_a.strides[1];
  const T* b = p.out_b.at<T>(row) + head * p.out_b.strides[1];
  T* out = p.out.at<T>(row) + head * p.out.strides[1];
  for (int64_t col = 0; col < p.v_dim; ++col) {
    const float x = to_float(a[col * p.out_a.strides[2]]);
    const float y = to_float(b[col * p.out_b.strides[2]]);
    out[col * p.out.strides[2]] = from_float<T>(w.merge(x, y));
  }
}

void merge_states_cpu(const MergeStatesParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < p.num_heads; ++head) {
      const float lse_a = p.lse_a.at<float>(row)[head * p.lse_a.strides[1]];
      const float lse_b = p.lse_b.at<float>(row)[head * p.lse_b.strides[1]];
      const MergeWeights w = merge_weights(lse_a, lse_b, sink_of(p.sinks, head));
      p.lse.at<float>(row)[head * p.lse.strides[1]] = w.lse;
      (void)with_dtype<float, BF16, F16>(
          p.out.dtype, [&]<class T>(T) { merge_pair<typename T::type>(p, row, head, w); });
    }
  }
}

}  // namespace dflash
