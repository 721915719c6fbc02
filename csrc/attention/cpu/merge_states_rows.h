// merge_states: attention over some keys, and over others, as attention over all of them. A loop
// for the compiler to vectorise, once per instruction set. `static`: see common/dtype.h.
//
// Reference: python/dflash_ops/reference/attention.py
#pragma once

#include "attention/cpu/kernels.h"
#include "attention/merge.h"
#include "common/cpu/fp32_row.h"
#include "common/dispatch.h"

namespace dflash {

inline constexpr int64_t kMergeColumns = 256;  // at a time

// Elements from .. from + count - 1 of a row, as floats.
static inline void load_columns(const ArrayView<3>& in, int64_t row, int64_t head, int64_t from,
                                int64_t count, float* out) {
  (void)with_dtype<float, BF16, F16>(in.dtype, [&]<class T>(T) {
    using Element = typename T::type;
    const int64_t stride = in.strides[2];
    const Element* x = in.at<Element>(row) + head * in.strides[1] + from * stride;
    if (stride == 1) return row_kernels().load(x, in.dtype, count, out);
    for (int64_t i = 0; i < count; ++i) out[i] = to_float(x[i * stride]);
  });
}

static inline void merge_pair(const MergeStatesParams& p, int64_t row, int64_t head,
                              const MergeWeights w) {
  float x[kMergeColumns], y[kMergeColumns];
  for (int64_t col = 0; col < p.v_dim; col += kMergeColumns) {
    const int64_t count = p.v_dim - col < kMergeColumns ? p.v_dim - col : kMergeColumns;
    load_columns(p.out_a, row, head, col, count, x);
    load_columns(p.out_b, row, head, col, count, y);
    for (int64_t i = 0; i < count; ++i) x[i] = w.merge(x[i], y[i]);
    (void)with_dtype<float, BF16, F16>(p.out.dtype, [&]<class T>(T) {
      auto* out = p.out.at<typename T::type>(row) + head * p.out.strides[1];
      row_kernels().store(x, count, p.out.dtype, out + col * p.out.strides[2], p.out.strides[2]);
    });
  }
}

// Rows begin .. end - 1.
static inline void merge_states_rows(const MergeStatesParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < p.num_heads; ++head) {
      const float lse_a = p.lse_a.at<float>(row)[head * p.lse_a.strides[1]];
      const float lse_b = p.lse_b.at<float>(row)[head * p.lse_b.strides[1]];
      const MergeWeights w = merge_weights(lse_a, lse_b, sink_of(p.sinks, head));
      p.lse.at<float>(row)[head * p.lse.strides[1]] = w.lse;
      merge_pair(p, row, head, w);
    }
  }
}

}  // namespace dflash
