// Where keys and values lie, and where results go: strides, pages and dtypes of the caller.
#pragma once

#include "attention/cpu/block_ops.h"
#include "attention/cpu/plan.h"

namespace dflash {

inline int64_t bytes_of(DType dtype, int64_t count) {
  const int64_t bytes = dtype == DType::kF32                            ? 4
                        : dtype == DType::kBF16 || dtype == DType::kF16 ? 2
                                                                        : 1;
  return count * bytes;
}

// Element `i` of a tensor.
inline const void* element(const void* data, DType dtype, int64_t i) {
  return static_cast<const char*>(data) + bytes_of(dtype, i);
}

// 64 keys and their values in the caches; null where there is no page.
struct KeyRows {
  const void* k[kBlockKeys];
  const void* v[kBlockKeys];
  float k_scales[kBlockKeys];
  float v_scales[kBlockKeys];
  uint64_t present;
};

// Those of the sequence indices begin .. end - 1, from entry `at` on.
void gather_keys(const TreeAttentionParams& p, const AttentionRequest& request, int64_t kv_head,
                 int64_t begin, int64_t end, int64_t at, KeyRows& keys);

// Ends the softmax of a tile's rows: sink, division, rounding.
void write_rows(const TreeAttentionParams& p, int64_t first_row, int64_t num_rows, int64_t kv_head,
                int64_t out_dim, const SoftmaxState& state);

}  // namespace dflash
