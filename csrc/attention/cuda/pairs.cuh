// The (row, query head) pairs of a tile, 16 to each of four warps: which keys each sees, the
// softmax of its scores, the leaves of its keys as they join, and its result.
#pragma once

#include "attention/cuda/block.cuh"
#include "attention/cuda/item.cuh"

namespace dflash {

template <class T, int kDim>
struct TilePairs {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;

  const TreeAttentionParams& p;
  AttentionItem& item;
  const int warp_pair = 16 * warp_index();
  LaneState<kDim> state;

  __device__ TilePairs(const AttendParams& a, AttentionItem& shared) : p(a.op), item(shared) {}

  __device__ int64_t row_of(int pair) const { return item.tile.row + pair / item.num_heads; }
  __device__ int64_t head_of(int pair) const { return item.first_head + pair % item.num_heads; }
  __device__ int lane_pair(int half) const { return warp_pair + lane_index() / 4 + 8 * half; }
  __device__ bool warp_has_pairs() const { return warp_pair < item.num_pairs; }

  __device__ const T* query(int pair) const {
    return p.q.at<T>(item.tile.first_row + row_of(pair)) + head_of(pair) * p.q.strides[1];
  }

  // By all threads that compute: what each pair sees by position.
  __device__ void find_rows() {
    for (int i = threadIdx.x; i < item.num_pairs; i += kAttentionThreads) {
      const RowBounds bounds(p, item.tile, row_of(i));
      item.seen[i] = {bounds.window_begin, bounds.keys_end};
      if (item.is_first_run && bounds.exceeds(item.tile))
        add_status(p.status, item.tile.request, kOutOfRange);
    }
  }

  // By all threads that compute: q to shared memory, zeros where there is no pair and past its end.
  __device__ void load_queries(uint32_t to) const {
    constexpr int kPieces = kDim / 8;
    for (int i = threadIdx.x; i < kTilePairs * kPieces; i += kAttentionThreads) {
      const int pair = i / kPieces, piece = i % kPieces;
      alignas(16) T elements[8] = {};
      if (pair < item.num_pairs && 8 * piece < p.k_dim) {
#pragma unroll
        for (int j = 0; j < 8; ++j) elements[j] = query(pair)[8 * piece + j];
      }
      store_shared_16(to + piece_offset(pair, piece), *reinterpret_cast<const uint4*>(elements));
    }
  }

  // Bit i: the pair sees position i of the block.
  __device__ uint64_t visible_bits(int half, const KeyBlock& block, uint64_t present) {
    const int pair = lane_pair(half);
    if (pair >= item.num_pairs) return 0;
    if (block.row >= 0) return pair / item.num_heads == block.row ? present : 0;
    const KeyRange seen = item.seen[pair];
    const uint64_t wanted = range_bits(seen.begin, seen.end, block.begin);
    const uint64_t missing = wanted & ~present;
    if (missing != 0) {
      const auto in_table = range_bits(item.tile.table_begin, item.tile.table_end, block.begin);
      if ((missing & in_table) != 0) add_status(p.status, item.tile.request, kOutOfRange);
    }
    return wanted & present;
  }

  // Products to scores, in log units.
  __device__ void scale(const KeysSeen& keys, Scores& scores) const {
    if (p.k_scale.data != nullptr) {
      const float* scales = keys.k_scales + 2 * (lane_index() % 4);
#pragma unroll
      for (int i = 0; i < kKeyTiles * 4; ++i) scores[i / 4][i % 4] *= scales[8 * (i / 4) + i % 2];
    }
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i) scores[i / 4][i % 4] *= p.scale;
    if (p.softcap > 0) {  // tile after tile, each in the first one's place: tanh is long
#pragma unroll 1
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        float capped[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) capped[i] = p.softcap * tanh_f32(scores[0][i] / p.softcap);
#pragma unroll
        for (int i = 0; i < kKeyTiles * 4; ++i) {
          scores[i / 4][i % 4] = i / 4 + 1 < kKeyTiles ? scores[i / 4 + 1][i % 4] : capped[i % 4];
        }
      }
    }
  }

  // Scores become weights; alpha is what the old sums and values are multiplied by.
  __device__ void softmax(const KeyBlock& block, const KeysSeen& keys, Values values,
                          Scores& scores, float (&alpha)[2]) {
    const int t = lane_index() % 4;
    scale(keys, scores);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (warp_pair + 8 * r >= item.num_pairs) {  // none of these rows is a pair
        alpha[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeyTiles * 2; ++i) scores[i / 2][2 * r + i % 2] = 0.0f;
        continue;
      }
      const uint64_t visible = visible_bits(r, block, keys.present), bits = visible >> (2 * t);
      const auto is_visible = [&](int i) { return (bits >> (8 * (i / 2) + i % 2) & 1) != 0; };
      if (__any_sync(kFullMask, ~visible != 0)) {
#pragma unroll
        for (int i = 0; i < kKeyTiles * 2; ++i) {
          float& x = scores[i / 2][2 * r + i % 2];
          x = is_visible(i) ? x : kNoScore;
        }
      }
      float max = state.max[r];
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) max = fmaxf(max, scores[i / 2][2 * r + i % 2]);
      max = fmaxf(max, __shfl_xor_sync(kFullMask, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kFullMask, max, 2));
      const float base = max == kNoScore ? 0.0f : max;
      alpha[r] = exp_f32(state.max[r] - base);
      state.max[r] = max;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) {
        float& x = scores[i / 2][2 * r + i % 2];
        x = exp_f32(x - base);  // 0 where there is no score
        sum += x;
      }
      state.sum[r] = fmaf(state.sum[r], alpha[r], sum);
      if (values > Values::kFinite) {
        alpha[r] = 1.0f;
#pragma unroll
        for (int i = 0; i < kKeyTiles * 2; ++i) {
          scores[i / 2][2 * r + i % 2] = is_visible(i) ? 1.0f : 0.0f;
        }
      } else if (p.v_scale.data != nullptr) {
        const float* scales = keys.v_scales + 2 * t;
#pragma unroll
        for (int i = 0; i < kKeyTiles * 2; ++i) {
          float& x = scores[i / 2][2 * r + i % 2];
          if (is_visible(i)) x *= scales[8 * (i / 2) + i % 2];
        }
      }
    }
  }

  // A leaf, by one pass over its keys, or by several where there are values that are not finite:
  // run_leaf(values) leaves it in `state`. `spare`: room for a state.
  template <class F>
  __device__ void attend_leaf(const StoredState& spare, F run_leaf) {
    for (Values values = !kIsFloat && item.is_careful ? Values::kFinite : Values::kStored;;) {
      run_leaf(values);
      if (values == Values::kStored) {
        if (!kIsFloat && !state.is_finite()) atomicOr(&item.is_spoilt, 1);
        return;
      }
      if (values == Values::kFinite) {
        store_state(state, spare, warp_pair, item.num_pairs);
      } else {
        const float special = values == Values::kInfinities           ? -kNoScore
                              : values == Values::kNegativeInfinities ? kNoScore
                                                                      : kNoScore - kNoScore;
        for_each_place(state, spare, warp_pair, item.num_pairs, [&](float& count, float& at, int) {
          if (count > 0) at += special;
        });
      }
      if (values == Values::kNans) break;
      values = static_cast<Values>(static_cast<int>(values) + 1);
    }
    load_state(state, spare, warp_pair, item.num_pairs);
  }

  // The item's leaves, joined by the tree: a state waits in memory until nothing can come between
  // it and the next. Heights at which waiting states meet their right neighbours fall from bottom
  // to top, so the bits of one word are the stack. The result of one run of several stays in the
  // first place.
  template <class F>
  __device__ void run(const TreeAttentionPlan& plan, F run_leaf) {
    const auto waiting = [&](uint64_t heights) -> StoredState {
      return {item.states + __popcll(heights) * plan.state_floats, p.v_dim};
    };
    state.clear();
    uint64_t heights = 0;
    for (int64_t leaf = item.first_leaf; leaf < item.end_leaf; ++leaf) {
      attend_leaf(waiting(heights), [&](Values pass) { run_leaf(leaf, pass); });
      const bool is_last = leaf + 1 == item.end_leaf;
      const int height = 64 - __clzll(leaf ^ (leaf + 1));  // where it meets what comes next
      while (heights != 0 && (is_last || __ffsll(heights) - 1 < height)) {
        heights &= heights - 1;
        merge_state(state, waiting(heights), warp_pair, item.num_pairs);
      }
      if (is_last && item.is_only_run) break;
      store_state(state, waiting(heights), warp_pair, item.num_pairs);
      heights |= uint64_t{1} << height;
    }
  }

  __device__ void write() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int pair = lane_pair(r);
      if (pair >= item.num_pairs) continue;
      const Ending ending(p, head_of(pair), state.max[r], state.sum[r]);
      const int64_t row = item.tile.first_row + row_of(pair), head = head_of(pair);
      if (lane_index() % 4 == 0) p.lse.at<float>(row)[head * p.lse.strides[1]] = ending.lse;
      T* out = p.out.at<T>(row) + head * p.out.strides[1];
      out += 2 * (lane_index() % 4) * p.out.strides[2];
#pragma unroll
      for (int tile = 0; tile < kDim / 8; ++tile) {
        if (8 * tile >= p.v_dim) break;
        const float low = ending(state.out[tile][2 * r]), high = ending(state.out[tile][2 * r + 1]);
        T* to = out + 8 * tile * p.out.strides[2];
        if constexpr (kIsFloat) {
          to[0] = low, to[p.out.strides[2]] = high;
        } else {
          const uint32_t word = round_pair<T>(low, high);
          to[0].bits = word & 0xffff, to[p.out.strides[2]].bits = word >> 16;
        }
      }
    }
  }
};

}  // namespace dflash
