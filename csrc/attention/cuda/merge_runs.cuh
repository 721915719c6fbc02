// Joins the runs of leaves that several CTAs have attended to.
#pragma once

#include "attention/cuda/item.cuh"

namespace dflash {

inline constexpr int kMergeThreads = 128;

// A CTA per (tile, KV head): its runs are leaves of the same tree, taken in order.
template <class T>
__global__ void __launch_bounds__(kMergeThreads)
    merge_runs_kernel(const __grid_constant__ AttendParams a) {
  constexpr int kDepth = 8;
  __shared__ float stack[kDepth][3][kMergeThreads];
  const TreeAttentionParams& p = a.op;
  const ItemIndex item(p, a.plan, blockIdx.x * a.plan.num_splits);
  const AttentionTile tile = a.tiles[item.tile];
  if (tile.num_rows == 0) return;
  const LeafRuns runs(tile, a.plan.num_splits);
  const HeadPart heads(p, item.part, a.plan.head_parts);
  if (runs.num_runs == 1) return;
  const int64_t count = tile.num_rows * heads.num_heads * p.v_dim;
  for (int64_t i = threadIdx.x; i < count; i += kMergeThreads) {
    const int pair = static_cast<int>(i / p.v_dim), col = static_cast<int>(i % p.v_dim);
    uint64_t heights = 0;
    float max = 0, sum = 0, out = 0;
    for (int64_t r = 0; r < runs.num_runs; ++r) {
      const int64_t at = (blockIdx.x * a.plan.num_splits + r) * a.plan.num_levels;
      const StoredState state{a.states + at * a.plan.state_floats, p.v_dim};
      max = state.max()[pair], sum = state.sum()[pair], out = state.out(pair)[col];
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
      auto& mine = stack[__popcll(heights)];
      mine[0][threadIdx.x] = max, mine[1][threadIdx.x] = sum, mine[2][threadIdx.x] = out;
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
