// tree_attention: softmax(q k) v of packed rows over paged keys and values, from sm_80 up.
//
//   plan    one CTA: lengths -> tiles of rows (plan_tiles.cuh)
//   attend  a CTA of 4 warps per (tile, KV head, run of leaves), 64 (row, query head) pairs
//           smem: q, and the keys and the values of one block of 64; the next keys come while the
//           weights are applied, the next values while the scores are made
//   merge   a thread per (pair, column) joins the runs of a tile
//   reads   keys and values once per tile; a tree's own blocks once more per row
//
// L1: blocks of 64 positions from absolute 0, leaves of 512, each from an empty state, joined by
// the fixed binary tree over the leaf index. Blocks where a tree's own rows begin are assembled for
// one query row at a time, by position, and go through the same arithmetic (block.cuh).
//
// Reference: python/dflash_ops/reference/attention.py

#include "attention/cuda/block.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/merge_runs.cuh"
#include "attention/cuda/plan_tiles.cuh"

namespace dflash {
namespace {

__device__ float capped(float x, float cap) { return cap * tanh_f32(x / cap); }

template <class T, int kDim>
struct Attend {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  using Block = std::conditional_t<kIsFloat, FloatBlock<kDim>, MatrixBlock<T, kDim>>;
  static constexpr int kBlockBytes = kBlockKeys * kDim * sizeof(T);
  // q (fp32: weights), keys, values (fp32: in their place).
  static constexpr int kQueryBytes = kIsFloat ? kTilePairs * kBlockKeys * 4 : kBlockBytes;
  static constexpr int kSmemBytes = kQueryBytes + (kIsFloat ? 1 : 2) * kBlockBytes;

  const TreeAttentionParams& p;
  const AttentionTile& tile;
  const HeadPart heads;
  const int num_pairs, warp_pair = 16 * warp_index();
  char* const smem;
  const uint32_t q_smem, k_smem, v_smem;
  KeyLoader loader;
  LaneState<kDim> state;
  int64_t leaf_end_key;
  RowBounds bounds[2];  // of the lane's two pairs

  __device__ Attend(const AttendParams& a, const AttentionTile& t, int64_t part, char* shared,
                    KeyTables& tables)
      : p(a.op),
        tile(t),
        heads(a.op, part, a.plan.head_parts),
        num_pairs(static_cast<int>(t.num_rows) * heads.num_heads),
        smem(shared),
        q_smem(shared_address(shared)),
        k_smem(q_smem + kQueryBytes),
        v_smem(kIsFloat ? k_smem : k_smem + kBlockBytes),
        loader(a.op, t, heads.kv_head, tables),
        bounds{RowBounds(p, t, bounded_row(0)), RowBounds(p, t, bounded_row(1))} {}

  // A row that exists, whatever the pair.
  __device__ int64_t bounded_row(int half) const {
    return least(row_of(lane_pair(half)), tile.row + tile.num_rows - 1);
  }

  __device__ int64_t row_of(int pair) const { return tile.row + pair / heads.num_heads; }
  __device__ int64_t head_of(int pair) const { return heads.first_head + pair % heads.num_heads; }
  __device__ int lane_pair(int half) const { return warp_pair + lane_index() / 4 + 8 * half; }

  __device__ const T* query(int pair) const {
    return p.q.at<T>(tile.first_row + row_of(pair)) + head_of(pair) * p.q.strides[1];
  }

  __device__ void load_queries() {
    if constexpr (!kIsFloat) {
      constexpr int kPieces = kDim / 8;
      for (int i = threadIdx.x; i < kTilePairs * kPieces; i += kAttentionThreads) {
        const int pair = i / kPieces, piece = i % kPieces;
        alignas(16) T elements[8] = {};
        if (pair < num_pairs && 8 * piece < p.k_dim) {
#pragma unroll
          for (int j = 0; j < 8; ++j) elements[j] = query(pair)[8 * piece + j];
        }
        store_shared_16(q_smem + piece_offset<T, kDim>(pair, piece),
                        *reinterpret_cast<const uint4*>(elements));
      }
    }
  }

  // The block after `block` in this leaf; begin is leaf_end_key after the last.
  __device__ KeyBlock next(KeyBlock block) const {
    if (block.row >= 0 && block.row + 1 < tile.num_rows) return {block.begin, block.row + 1};
    return at_position(block.begin + kBlockKeys);
  }
  __device__ KeyBlock at_position(int64_t begin) const {
    const bool is_own = tile.is_tree && begin + kBlockKeys > tile.ctx_len;
    if (tile.is_tree && begin >= tile.ctx_len) begin = next_own(begin) / kBlockKeys * kBlockKeys;
    return {least(begin, leaf_end_key), is_own ? 0 : -1};
  }
  // The first position from `begin` on where an own row stands: depths may leave wide gaps.
  __device__ int64_t next_own(int64_t begin) const {
    int64_t first = kUnbounded;
    for (int64_t i = lane_index(); i < tile.request_rows; i += kWarpSize) {
      const int64_t position = row_position(p, tile, i);
      if (position >= begin) first = least(first, position);
    }
    return warp_min(first);
  }

  __device__ void load_keys() {
    loader.template copy<T, kDim>(p.k_cache, p.k_dim, false, k_smem);
    cp_async_commit();
  }
  __device__ void load_values() {
    loader.template copy<T, kDim>(p.v_cache, p.v_dim, true, v_smem);
    cp_async_commit();
  }

  __device__ void score(Scores& scores) {
    if constexpr (kIsFloat) {
      const float* const q[2]{lane_pair(0) < num_pairs ? query(lane_pair(0)) : nullptr,
                              lane_pair(1) < num_pairs ? query(lane_pair(1)) : nullptr};
      Block::score(q, k_smem, p.k_dim, scores);
    } else {
      Block::score(q_smem, k_smem, p.k_dim, scores);
    }
  }

  // Bit i: the pair sees position i of the block.
  __device__ uint64_t visible_bits(int half, const KeyBlock& block, int slot) {
    const int pair = lane_pair(half);
    if (pair >= num_pairs) return 0;
    const uint64_t present = loader.present(slot);
    if (block.row >= 0) return row_of(pair) == tile.row + block.row ? present : 0;
    const uint64_t wanted =
        range_bits(bounds[half].window_begin, bounds[half].keys_end, block.begin);
    const uint64_t in_table = range_bits(tile.table_begin, tile.table_end, block.begin);
    if ((wanted & in_table & ~present) != 0) loader.status |= kOutOfRange;
    return wanted & present;
  }

  // Scores become weights; alpha is what the old sums and values are multiplied by.
  __device__ void softmax(const KeyBlock& block, int slot, Values values, Scores& scores,
                          float (&alpha)[2]) {
    const int t = lane_index() % 4;
    const KeyTables& tables = loader.tables;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint64_t bits = visible_bits(r, block, slot) >> (2 * t);
      float max = state.max[r];
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) {
        float& x = scores[i / 2][2 * r + i % 2];
        if (p.k_scale.data != nullptr) x *= tables.k_scales[slot][8 * (i / 2) + 2 * t + i % 2];
        x *= p.scale;
        if (p.softcap > 0) x = capped(x, p.softcap);
        x = (bits >> (8 * (i / 2) + i % 2) & 1) != 0 ? x : kNoScore;
        max = fmaxf(max, x);
      }
      max = fmaxf(max, __shfl_xor_sync(kFullMask, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kFullMask, max, 2));
      const float base = max == kNoScore ? 0.0f : max;
      alpha[r] = exp_f32(state.max[r] - base);
      state.max[r] = max;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kKeyTiles * 2; ++i) {
        float& x = scores[i / 2][2 * r + i % 2];
        const bool is_visible = (bits >> (8 * (i / 2) + i % 2) & 1) != 0;
        x = is_visible ? exp_f32(x - base) : 0.0f;
        sum += x;
        if (values > Values::kFinite) {
          x = is_visible ? 1.0f : 0.0f;
        } else if (p.v_scale.data != nullptr && is_visible) {
          x *= tables.v_scales[slot][8 * (i / 2) + 2 * t + i % 2];
        }
      }
      state.sum[r] = fmaf(state.sum[r], alpha[r], sum);
      if (values > Values::kFinite) alpha[r] = 1.0f;
    }
  }

  __device__ void accumulate(const Scores& weights, const float (&alpha)[2]) {
    if constexpr (kIsFloat) {
      Block::accumulate(weights, reinterpret_cast<float*>(smem) + warp_pair * kBlockKeys,
                        reinterpret_cast<const float*>(smem + kQueryBytes), p.v_dim, alpha, state);
    } else {
      Block::accumulate(weights, v_smem, p.v_dim, alpha, state);
    }
  }

  // One leaf, from an empty state.
  __device__ void run_leaf(int64_t leaf, Values values) {
    const int64_t begin = most(leaf * kLeafKeys, tile.key_begin / kBlockKeys * kBlockKeys);
    leaf_end_key =
        least((leaf + 1) * kLeafKeys, (tile.key_end + kBlockKeys - 1) / kBlockKeys * kBlockKeys);
    state.clear();
    const bool has_pairs = warp_pair < num_pairs;
    KeyBlock block = at_position(begin);
    if (block.begin >= leaf_end_key) return;
    __syncthreads();
    loader.find_block(block, 0);
    load_keys();
    if constexpr (!Block::kSharesKeysAndValues) load_values();
    for (int slot = 0; block.begin < leaf_end_key; slot ^= 1) {
      Scores scores;
      float alpha[2];
      if constexpr (Block::kSharesKeysAndValues) {
        cp_async_wait<0>();
      } else {
        cp_async_wait<1>();
      }
      __syncthreads();  // the keys are there
      if (has_pairs) score(scores);
      __syncthreads();  // and read
      const KeyBlock after = next(block);
      const bool has_next = after.begin < leaf_end_key;
      if constexpr (Block::kSharesKeysAndValues) {
        load_values();
      } else {
        if (has_next) loader.find_block(after, slot ^ 1);
        if (has_next) {
          load_keys();
        } else {
          cp_async_commit();
        }
      }
      if (has_pairs) softmax(block, slot, values, scores, alpha);
      if constexpr (Block::kSharesKeysAndValues) {
        cp_async_wait<0>();
      } else {
        cp_async_wait<1>();
      }
      __syncthreads();  // the values are there
      if constexpr (!kIsFloat) {
        if (values != Values::kStored) {
          replace_values<T, kDim>(reinterpret_cast<uint32_t*>(smem + kQueryBytes + kBlockBytes),
                                  values);
        }
      }
      if (has_pairs) accumulate(scores, alpha);
      __syncthreads();  // and read
      if (has_next) {
        if constexpr (Block::kSharesKeysAndValues) {
          loader.find_block(after, slot ^ 1);
          load_keys();
        } else {
          load_values();
        }
      }
      block = after;
    }
    cp_async_wait<0>();
    state.end_leaf();
  }

  // `spare`: room for a state.
  __device__ void attend_leaf(int64_t leaf, const StoredState& spare) {
    run_leaf(leaf, Values::kStored);
    if constexpr (!kIsFloat) {
      if (!__syncthreads_or(!state.is_finite())) return;
#pragma unroll 1
      for (int i = static_cast<int>(Values::kFinite); i <= static_cast<int>(Values::kNans); ++i) {
        const auto values = static_cast<Values>(i);
        run_leaf(leaf, values);
        if (values == Values::kFinite) {
          store_state(state, spare, warp_pair, num_pairs);
          continue;
        }
        const float special = values == Values::kInfinities           ? -kNoScore
                              : values == Values::kNegativeInfinities ? kNoScore
                                                                      : kNoScore - kNoScore;
        for_each_place(state, spare, warp_pair, num_pairs, [&](float& count, float& at, int) {
          if (count > 0) at += special;
        });
      }
      __syncwarp();
      state.clear();
      merge_state(state, spare, warp_pair, num_pairs);
    }
  }

  // The leaves first .. end - 1, joined by the tree: a state waits in memory until nothing can come
  // between it and the next. Heights at which waiting states meet their right neighbours fall from
  // bottom to top, so the bits of one word are the stack.
  __device__ void run(int64_t first, int64_t end, const AttendParams& a, float* states) {
    uint64_t heights = 0;
    for (int64_t leaf = first; leaf < end; ++leaf) {
      attend_leaf(leaf, waiting(a, states, __popcll(heights)));
      const bool is_last = leaf + 1 == end;
      const int height = 64 - __clzll(leaf ^ (leaf + 1));  // where it meets what comes next
      while (heights != 0 && (is_last || __ffsll(heights) - 1 < height)) {
        heights &= heights - 1;
        merge_state(state, waiting(a, states, __popcll(heights)), warp_pair, num_pairs);
      }
      if (is_last) break;
      store_state(state, waiting(a, states, __popcll(heights)), warp_pair, num_pairs);
      heights |= uint64_t{1} << height;
    }
    if (first >= end) state.clear();
  }
  __device__ StoredState waiting(const AttendParams& a, float* states, int level) const {
    return {states + level * a.plan.state_floats, p.v_dim};
  }

  __device__ void write() {
    float sums[2], maxima[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sums[r] = state.sum[r], maxima[r] = state.max[r];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int pair = lane_pair(r);
      if (pair >= num_pairs) continue;
      const Ending ending(p, head_of(pair), maxima[r], sums[r]);
      const int64_t row = tile.first_row + row_of(pair), head = head_of(pair);
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

template <class T, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    tree_attention_kernel(const __grid_constant__ AttendParams a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ KeyTables tables;
  __shared__ AttentionTile tile;
  const ItemIndex item(a.op, a.plan, blockIdx.x);
  if (threadIdx.x == 0) tile = a.tiles[item.tile];
  __syncthreads();
  if (tile.num_rows == 0) return;
  const LeafRuns runs(tile, a.plan.num_splits);
  if (item.split >= runs.num_runs) return;
  const int64_t run = runs.first_run + item.split;
  const int64_t first = most(run << runs.log_leaves, runs.first_leaf);
  const int64_t end = least((run + 1) << runs.log_leaves, runs.end_leaf);

  Attend<T, kDim> attend(a, tile, item.part, shared, tables);
  if (attend.num_pairs <= 0) return;
  if (item.split == 0) {
    for (int64_t i = threadIdx.x; i < tile.num_rows; i += kAttentionThreads) {
      if (RowBounds(a.op, tile, tile.row + i).exceeds(tile)) attend.loader.status |= kOutOfRange;
    }
  }
  attend.load_queries();
  float* states = a.states + blockIdx.x * a.plan.num_levels * a.plan.state_floats;
  attend.run(first, end, a, states);
  if (runs.num_runs == 1) {
    attend.write();
  } else {
    store_state(attend.state, {states, a.op.v_dim}, attend.warp_pair, attend.num_pairs);
  }
  add_status(a.op.status, tile.request, attend.loader.status);
}

template <class T, int kDim>
cudaError_t launch_attend(const AttendParams& a, cudaStream_t stream) {
  constexpr int kBytes = Attend<T, kDim>::kSmemBytes;
  static_assert(kBytes + sizeof(KeyTables) + sizeof(AttentionTile) <= 99 * 1024);
  const auto kernel = tree_attention_kernel<T, kDim>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<a.plan.num_items, kAttentionThreads, kBytes, stream>>>(a);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_all(const AttendParams& a, AttentionTile* tiles, cudaStream_t stream) {
  plan_tiles_kernel<T><<<1, kPlanThreads, 0, stream>>>(a.op, a.plan, tiles);
  if (a.plan.num_items == 0) return cudaGetLastError();
  const int64_t dim = std::max(a.op.k_dim, a.op.v_dim);
  cudaError_t error = cudaErrorInvalidValue;
  (void)with_constant<64, 128, 256>(dim <= 64 ? 64 : (dim <= 128 ? 128 : 256), [&](auto padded) {
    error = launch_attend<T, padded()>(a, stream);
  });
  if (error != cudaSuccess || a.plan.num_splits == 1) return error;
  merge_runs_kernel<T><<<a.plan.num_items / a.plan.num_splits, kMergeThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_tree_attention(const TreeAttentionParams& p, const TreeAttentionPlan& plan,
                                  void* workspace, cudaStream_t stream) {
  auto* tiles = static_cast<AttentionTile*>(workspace);
  auto* states = reinterpret_cast<float*>(static_cast<char*>(workspace) + plan.tiles_bytes);
  const AttendParams a{p, plan, tiles, states};
  cudaError_t error = cudaErrorInvalidValue;
  (void)with_dtype<float, BF16, F16>(
      p.q.dtype, [&]<class T>(std::type_identity<T>) { error = launch_all<T>(a, tiles, stream); });
  return error;
}

}  // namespace dflash
