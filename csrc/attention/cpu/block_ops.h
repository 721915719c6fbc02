// The arithmetic of one block of 64 positions, on plain float arrays. Each instruction set has its
// own table of these functions, and every table gives the same bits: block_products.h,
// block_softmax.h.
#pragma once

#include <cstdint>

#include "attention/params.h"

namespace dflash {

inline constexpr int kBlockKeys = 64;     // L1: reductions over keys go by blocks of positions
inline constexpr int kLeafKeys = 512;     // each leaf starts from an empty state
inline constexpr int kLaneMultiple = 16;  // rows of values and of results are padded to this

// Rows of a tensor, gathered. A null row reads as zeros.
struct GatheredRows {
  const void* const* rows;  // [num_rows]
  const float* scales;      // [num_rows]; null: 1
  DType dtype;
  int64_t num_rows;
  int64_t dim;
};

// Rows that are wanted next. Products bring them into the second cache, a few every few steps:
// requests for memory that come all at once would hold up what is at work.
struct RowsAhead {
  const void* const* rows;  // [end]; null: none
  int64_t next, end;
  int64_t row_bytes;
};

static inline void prefetch(RowsAhead& ahead, int64_t num_rows) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t i = 0; i < num_rows && ahead.next < ahead.end; ++i, ++ahead.next) {
    const auto* row = static_cast<const char*>(ahead.rows[ahead.next]);
    for (int64_t at = 0; row != nullptr && at < ahead.row_bytes; at += kLineBytes) {
      __builtin_prefetch(row + at, 0, 2);  // for reading, into the second cache
    }
  }
}

// What is known of `num_pairs` (row, head) pairs after some keys. A pair without keys has sum 0.
struct SoftmaxState {
  float* max;  // [num_pairs]
  float* sum;  // [num_pairs]           sum of exp(score - max)
  float* out;  // [num_pairs, out_dim]  sum of exp(score - max) * value
};

// Some pairs of a block, `group` after another of the same query row. Each sees a key of it.
struct SoftmaxBlock {
  float* scores;           // [num_pairs, kBlockKeys] raw products in, weights out
  const int32_t* visible;  // [num_pairs / group, kBlockKeys] 0 or -1; null: all keys
  int64_t num_pairs;
  int64_t group;
  float scale;
  float softcap;
  float* alpha;  // [num_pairs] out: factor of the state so far
};

// The two products of a block and the layouts they take. Null functions: there are none.
struct BlockProducts {
  // rows of q -> out [num_rows, dim]
  void (*load_queries)(const GatheredRows& in, float* out);
  // at most kBlockKeys rows -> out [dim, kBlockKeys], absent columns zeroed
  void (*load_keys)(const GatheredRows& in, float* out);
  // kBlockKeys rows -> out [kBlockKeys, out_dim]
  void (*load_values)(const GatheredRows& in, float* out, int64_t out_dim);
  // scores [num_pairs, kBlockKeys] of the first num_keys keys, a multiple of kLaneMultiple
  void (*score)(const float* q, int64_t num_pairs, int64_t dim, const float* k, int64_t num_keys,
                float* scores, RowsAhead& ahead);
  // out[pair] = out[pair] * alpha[pair] + sum of weight * value over keys 0 .. num_keys - 1,
  // num_keys as above. May spoil the weights.
  void (*accumulate)(const SoftmaxBlock& block, const float* values, int64_t num_keys, float* out,
                     int64_t out_dim, RowsAhead& ahead);
};

struct BlockOps {
  BlockProducts floats;  // any dtypes, everything in float
  BlockProducts bf16;    // for queries, keys and values in bf16: weights are rounded to it as well
  // Whether every element is finite.
  bool (*all_finite)(const GatheredRows& in);
  void (*softmax)(const SoftmaxBlock& block, const SoftmaxState& state);
  // a = a and b together.
  void (*merge)(const SoftmaxState& a, const SoftmaxState& b, int64_t num_pairs, int64_t out_dim);
  // Rows begin .. end - 1 of merge_states.
  void (*merge_states)(const MergeStatesParams& p, int64_t begin, int64_t end);
};

const BlockOps& block_ops_portable();
const BlockOps& block_ops_avx2();
const BlockOps& block_ops_avx512();
const BlockOps& block_ops_avx512bf16();

}  // namespace dflash
