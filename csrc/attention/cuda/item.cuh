// What a CTA of tree_attention works on, and how a result ends.
#pragma once

#include "attention/cuda/requests.cuh"
#include "attention/cuda/state.cuh"
#include "common/dispatch.h"
#include "common/logf.h"

namespace dflash {

struct AttendParams {
  TreeAttentionParams op;
  TreeAttentionPlan plan;
  const AttentionTile* tiles;
  float* states;  // [num_items][num_levels][state_floats]
};

// The query heads of a CTA: up to kTilePairs of those that share a KV head.
struct HeadPart {
  int64_t kv_head, first_head;
  int num_heads;

  __device__ HeadPart(const TreeAttentionParams& p, int64_t part, int64_t head_parts)
      : kv_head(part / head_parts) {
    const int64_t group = p.num_heads / p.num_kv_heads, first = part % head_parts * kTilePairs;
    first_head = kv_head * group + first;
    num_heads = static_cast<int>(least(group - first, kTilePairs));
  }
};

struct ItemIndex {
  int64_t tile, part, split;

  __device__ ItemIndex(const TreeAttentionParams& p, const TreeAttentionPlan& plan, int64_t item)
      : tile(item / plan.num_splits / (p.num_kv_heads * plan.head_parts)),
        part(item / plan.num_splits % (p.num_kv_heads * plan.head_parts)),
        split(item % plan.num_splits) {}
};

// Positions from begin to end - 1.
struct KeyRange {
  int64_t begin, end;
};

// What a CTA works on: found by one thread and kept in shared memory, not in registers.
struct AttentionItem {
  AttentionTile tile;
  int64_t kv_head, first_head;
  int num_heads, num_pairs;      // no pairs: nothing to do
  int64_t first_leaf, end_leaf;  // its run of the tile's leaves
  bool is_first_run, is_only_run;
  int is_spoilt;              // whether a leaf came to something that is not finite
  bool is_careful;            // whether its leaves are done again: TilePairs::attend_leaf
  float* states;              // where it sets states aside
  KeyRange seen[kTilePairs];  // by position, by each pair: TilePairs::find_rows

  __device__ void find(const AttendParams& a, int64_t index) {
    const ItemIndex place(a.op, a.plan, index);
    tile = a.tiles[place.tile];
    num_pairs = is_spoilt = 0;
    is_careful = false;
    if (tile.num_rows == 0) return;
    const LeafRuns runs(tile, a.plan.num_splits);
    if (place.split >= runs.num_runs) return;
    const HeadPart heads(a.op, place.part, a.plan.head_parts);
    kv_head = heads.kv_head, first_head = heads.first_head, num_heads = heads.num_heads;
    num_pairs = static_cast<int>(tile.num_rows) * num_heads;
    const int64_t run = runs.first_run + place.split;
    first_leaf = most(run << runs.log_leaves, runs.first_leaf);
    end_leaf = least((run + 1) << runs.log_leaves, runs.end_leaf);
    is_first_run = place.split == 0;
    is_only_run = runs.num_runs == 1;
    states = a.states + index * a.plan.num_levels * a.plan.state_floats;
  }

  // By all threads after a run: whether there is to be another.
  __device__ bool runs_again() {
    __syncthreads();
    if (is_spoilt == 0 || is_careful) return false;
    __syncthreads();
    if (threadIdx.x == 0) is_careful = true;
    __syncthreads();
    return true;
  }
};

__device__ inline float sink_of(const TreeAttentionParams& p, int64_t head) {
  float sink = kNoScore;
  if (!p.sinks) return sink;
  (void)with_dtype<float, BF16, F16>(p.sinks.dtype, [&]<class U>(std::type_identity<U>) {
    sink = to_float(*p.sinks.at<U>(head));
  });
  return sink;
}

// The sink joins the sum under a common maximum.
struct Ending {
  float lse, weight, divisor;

  __device__ Ending(const TreeAttentionParams& p, int64_t head, float max, float sum)
      : lse(sum == 0 ? kNoScore : (isnan(sum) ? sum : max + log_f32(sum))),
        weight(1.0f),
        divisor(sum) {
    if (!p.sinks || sum == 0) return;
    const float sink = sink_of(p, head), top = sink > max ? sink : max;
    weight = exp_f32(max - top);
    divisor = fmaf(sum, weight, exp_f32(sink - top));
  }
  __device__ float operator()(float out) const {
    return divisor == 0 ? 0.0f : out * weight / divisor;
  }
};

}  // namespace dflash
