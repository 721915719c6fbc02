// Joins the runs of leaves that several CTAs have attended to.
#pragma once

#include "attention/cuda/item.cuh"

namespace dflash {

inline constexpr int kMergeThreads = 128;

// Of a (tile, KV head), so many CTAs: y of the grid.
inline int64_t merge_runs_ctas(const TreeAttentionParams& p, const TreeAttentionPlan& plan) {
  const int64_t heads = std::min<int64_t>(p.num_heads / p.num_kv_heads, kTilePairs);
  const int64_t rows = std::clamp<int64_t>(p.num_rows, 1, plan.tile_rows);
  return (rows * heads * p.v_dim + kMergeThreads - 1) / kMergeThreads;
}

// A thread per (pair, column): the runs are leaves of the same tree, taken in order, and read
// several at a time, as each read takes long.
template <class T>
__global__ void __launch_bounds__(kMergeThreads)
    merge_runs_kernel(const __grid_constant__ AttendParams a) {
  constexpr int kDepth = 8, kAtOnce = 8;
  __shared__ float stack[kDepth][3][kMergeThreads], read[kAtOnce][3][kMergeThreads];
  const TreeAttentionParams& p = a.op;
  const ItemIndex item(p, a.plan, blockIdx.x * a.plan.num_splits);
  const AttentionTile tile = a.tiles[item.tile];
  if (tile.num_rows == 0) return;
  const LeafRuns runs(tile, a.plan.num_splits);
  const HeadPart heads(p, item.part, a.plan.head_parts);
  if (runs.num_runs == 1) return;
  const int64_t count = tile.num_rows * heads.num_heads * p.v_dim;
  const int64_t num_threads = int64_t{kMergeThreads} * gridDim.y;
  for (int64_t i = kMergeThreads * blockIdx.y + threadIdx.x; i < count; i += num_threads) {
    const int pair = static_cast<int>(i / p.v_dim), col = static_cast<int>(i % p.v_dim);
    uint64_t heights = 0;
    float max = 0, sum = 0, out = 0;
    for (int64_t r = 0; r < runs.num_runs; ++r) {
      if (r % kAtOnce == 0) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (r + j >= runs.num_runs) break;
          const int64_t at = (blockIdx.x * a.plan.num_splits + r + j) * a.plan.num_levels;
          const StoredState state{a.states + at * a.plan.state_floats, p.v_dim};
          read[j][0][threadIdx.x] = state.max()[pair];
          read[j][1][threadIdx.x] = state.sum()[pair];
          read[j][2][threadIdx.x] = state.out(pair)[col];
        }
      }
      const auto& mine = read[r % kAtOnce];
      max = mine[0][threadIdx.x], sum = mine[1][threadIdx.x], out = mine[2][threadIdx.x];
      const bool is_last = r + 1 == runs.num_runs;
      const int64_t run = runs.first_run + r;
      const int height = 64 - __clzll(run ^ (run + 1));
      while (heights != 0 && (is_last || __ffsll(heights) - 1 < height)) {
        heights &= heights - 1;
        const auto& before = stack[__popcll(heights)];
        const MergeWeights weights(before[0][threadIdx.x], max);
        max = weights.max;
        sum = fmaf(sum, weights.b, before[1][threadIdx.x] * weights.a);
        out = fmaf(out, weights.b, before[2][threadIdx.x] * weights.a);
      }
      auto& waiting = stack[__popcll(heights)];
      waiting[0][threadIdx.x] = max, waiting[1][threadIdx.x] = sum, waiting[2][threadIdx.x] = out;
      heights |= uint64_t{1} << height;
    }
    const int64_t row = tile.first_row + tile.row + pair / heads.num_heads;
    const int64_t head = heads.first_head + pair % heads.num_heads;
    const Ending ending(p, head, max, sum);
    p.out.at<T>(row)[head * p.out.strides[1] + col * p.out.strides[2]] = from_float<T>(ending(out));
    if (col == 0) p.lse.at<float>(row)[head * p.lse.strides[1]] = ending.lse;
  }
}

}  // namespace dflash
