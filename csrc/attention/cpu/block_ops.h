// The arithmetic of one block of 64 positions, on plain float arrays. Each instruction set has its
// own table of these functions, and every table gives the same bits: block_impl.h.
#pragma once

#include <cstdint>

#include "common/dtype.h"

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

// The visible keys of a query, by ascending position.
struct KeyList {
  int32_t count;
  int32_t offset[kBlockKeys];  // position within the block
  int32_t row[kBlockKeys];     // row of the gathered values
};

// What is known of `num_pairs` (row, head) pairs after some keys. A pair without keys has sum 0.
struct SoftmaxState {
  float* max;  // [num_pairs]
  float* sum;  // [num_pairs]           sum of exp(score - max)
  float* out;  // [num_pairs, out_dim]  sum of exp(score - max) * value
};

struct SoftmaxBlock {
  float* scores;           // [num_pairs, kBlockKeys] raw products in, weights out
  int64_t score_stride;    // between pairs
  const int32_t* visible;  // [kBlockKeys] 0 or -1; null: all keys
  int64_t num_pairs;
  float scale;
  float softcap;
  float* alpha;  // [num_pairs] out: factor of the state so far
};

struct ScoreOps {
  // rows -> out [num_rows, stride] in float, columns past dim zeroed up to the stride.
  void (*load_rows)(const GatheredRows& in, float* out, int64_t stride);
  // rows, at most kBlockKeys -> out [dim, kBlockKeys], transposed, absent columns zeroed.
  void (*load_transposed)(const GatheredRows& in, float* out);
  // q [num_pairs, dim], k [dim, kBlockKeys] -> scores [num_pairs, kBlockKeys]
  void (*score)(const float* q, int64_t num_pairs, int64_t dim, const float* k, float* scores,
                int64_t score_stride);
};

struct BlockOps {
  ScoreOps floats;
  // The same for bf16 queries and keys, two elements to a word: dim counts words, whose dtype is
  // given as float32. Null functions: there is none.
  ScoreOps bf16_pairs;
  void (*softmax)(const SoftmaxBlock& block, const SoftmaxState& state);
  // out[pair] = out[pair] * alpha[pair] + sum of weight * value over the keys
  void (*accumulate)(const SoftmaxBlock& block, const KeyList& keys, const float* values,
                     float* out, int64_t out_dim);
  // a = a and b together.
  void (*merge)(const SoftmaxState& a, const SoftmaxState& b, int64_t num_pairs, int64_t out_dim);
};

const BlockOps& block_ops_portable();
const BlockOps& block_ops_avx2();
const BlockOps& block_ops_avx512();
const BlockOps& block_ops_avx512bf16();

}  // namespace dflash
