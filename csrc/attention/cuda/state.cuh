// The running softmax of (row, query head) pairs, and how two of them join.
#pragma once

#include <limits>

#include "common/expf.h"
#include "device/ptx.cuh"

namespace dflash {

inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Factors of two states under their common maximum; a state without a key passes the other's bits
// through, as its sum and values are 0.
struct MergeWeights {
  float max, a, b;

  __device__ MergeWeights(float max_a, float max_b) : max(fmaxf(max_a, max_b)) {
    const float base = max == kNoScore ? 0.0f : max;
    a = exp_f32(max_a - base);
    b = exp_f32(max_b - base);
  }
};

// What a lane holds of a warp's 16 pairs: pairs lane / 4 and 8 below, columns 2 (lane % 4) and the
// next of every 8: the places of mma's sums.
template <int kDim>
struct LaneState {
  static constexpr int kTiles = kDim / 8;

  float max[2], sum[2];  // sum: of the lane's own columns until the end of a leaf
  float out[kTiles][4];

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = kNoScore, sum[r] = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) out[i / 4][i % 4] = 0.0f;
  }

  // Adds the columns of the four lanes that share a pair.
  __device__ void end_leaf() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kFullMask, sum[r], 1);
      sum[r] += __shfl_xor_sync(kFullMask, sum[r], 2);
    }
  }

  __device__ bool is_finite() const {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) finite &= fabsf(out[i / 4][i % 4]) <= 3.402823466e38f;
    return finite;
  }
};

// A state in memory: maxima, sums, [kTilePairs][v_dim] values.
struct StoredState {
  float* data;
  int64_t v_dim;

  __device__ float* max() const { return data; }
  __device__ float* sum() const { return data + 64; }
  __device__ float* out(int pair) const { return data + 128 + pair * v_dim; }
};

// Calls f(element of state.out, its place in `stored`) for each of the lane's places.
template <int kDim, class F>
__device__ inline void for_each_place(LaneState<kDim>& state, const StoredState& stored,
                                      int warp_pair, int num_pairs, F f) {
  const int lane = lane_index();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = warp_pair + lane / 4 + 8 * r;
    if (pair >= num_pairs) continue;
    float* out = stored.out(pair) + 2 * (lane % 4);
#pragma unroll
    for (int tile = 0; tile < kDim / 8; ++tile) {
      if (8 * tile >= stored.v_dim) break;  // a multiple of 8
      f(state.out[tile][2 * r], out[8 * tile], r);
      f(state.out[tile][2 * r + 1], out[8 * tile + 1], r);
    }
  }
}

template <int kDim>
__device__ inline void store_state(LaneState<kDim>& state, const StoredState& to, int warp_pair,
                                   int num_pairs) {
  const int lane = lane_index();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = warp_pair + lane / 4 + 8 * r;
    if (lane % 4 == 0 && pair < num_pairs) {
      to.max()[pair] = state.max[r];
      to.sum()[pair] = state.sum[r];
    }
  }
  for_each_place(state, to, warp_pair, num_pairs, [](float& out, float& at, int) { at = out; });
  __syncwarp();  // a pair's maximum and sum are there for its four lanes
}

template <int kDim>
__device__ inline void load_state(LaneState<kDim>& state, const StoredState& from, int warp_pair,
                                  int num_pairs) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = warp_pair + lane_index() / 4 + 8 * r;
    if (pair >= num_pairs) continue;
    state.max[r] = from.max()[pair];
    state.sum[r] = from.sum()[pair];
  }
  for_each_place(state, from, warp_pair, num_pairs, [](float& out, float& at, int) { out = at; });
}

// state = merge(before, state).
template <int kDim>
__device__ inline void merge_state(LaneState<kDim>& state, const StoredState& before, int warp_pair,
                                   int num_pairs) {
  float weight_a[2], weight_b[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = warp_pair + lane_index() / 4 + 8 * r;
    const float max = pair < num_pairs ? before.max()[pair] : kNoScore;
    const float sum = pair < num_pairs ? before.sum()[pair] : 0.0f;
    const MergeWeights weights(max, state.max[r]);
    weight_a[r] = weights.a, weight_b[r] = weights.b;
    state.max[r] = weights.max;
    state.sum[r] = fmaf(state.sum[r], weights.b, sum * weights.a);
  }
  for_each_place(state, before, warp_pair, num_pairs, [&](float& out, float& at, int r) {
    out = fmaf(out, weight_b[r], at * weight_a[r]);
  });
}

}  // namespace dflash
