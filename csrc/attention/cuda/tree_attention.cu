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

#include "attention/cuda/launch.h"
#include "attention/cuda/launch_sm90.h"
#include "attention/cuda/leaf_blocks.cuh"
#include "attention/cuda/merge_runs.cuh"
#include "attention/cuda/pairs.cuh"
#include "attention/cuda/plan_tiles.cuh"
#include "device/launch.cuh"

namespace dflash {
namespace {

template <class T, int kDim>
struct Attend {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  using Block = std::conditional_t<kIsFloat, FloatBlock<kDim>, MatrixBlock<T, kDim>>;
  static constexpr int kBlockBytes = kBlockKeys * kDim * sizeof(T);
  // q (fp32: weights), keys, values (fp32: in their place).
  static constexpr int kQueryBytes = kIsFloat ? kTilePairs * kBlockKeys * 4 : kBlockBytes;
  static constexpr int kSmemBytes = kQueryBytes + (kIsFloat ? 1 : 2) * kBlockBytes;

  const TreeAttentionParams& p;
  TilePairs<T, kDim> pairs;
  KeyLoader loader;
  char* const smem;
  const uint32_t q_smem, k_smem, v_smem;

  __device__ Attend(const AttendParams& a, AttentionItem& item, char* shared, KeyTables& tables)
      : p(a.op),
        pairs(a, item),
        loader(a.op, item, tables),
        smem(shared),
        q_smem(shared_address(shared)),
        k_smem(q_smem + kQueryBytes),
        v_smem(kIsFloat ? k_smem : k_smem + kBlockBytes) {}

  // Of a block that is not there: an empty group.
  __device__ void load_keys(bool is_there) const {
    if (is_there) loader.template copy<T, kDim>(p.k_cache, p.k_dim, false, k_smem);
    cp_async_commit();
  }
  __device__ void load_values(bool is_there) const {
    if (is_there) loader.template copy<T, kDim>(p.v_cache, p.v_dim, true, v_smem);
    cp_async_commit();
  }
  template <int kPending>
  __device__ static void wait_for_copies() {
    cp_async_wait<kPending>();
    __syncthreads();
  }

  // One leaf, from an empty state. The first turn only loads.
  __device__ void run_leaf(int64_t leaf, Values values) {
    const LeafBlocks blocks{p, loader.tile, leaf};
    const bool works = pairs.warp_has_pairs();
    pairs.state.clear();
    KeyBlock block = blocks.none(), next = blocks.first();
    __syncthreads();  // q is there; the last leaf's tables are in use no more
#pragma unroll 1
    for (int slot = 1; blocks.has(block) || blocks.has(next); slot ^= 1) {
      Scores scores;
      float alpha[2];
      if (blocks.has(block)) {
        wait_for_copies<1>();  // keys
        if (works) Block::score(q_smem, k_smem, p.k_dim, scores);
        __syncthreads();  // they are read
      }
      if (blocks.has(next)) loader.find_block(next, slot ^ 1);
      load_keys(blocks.has(next));
      if (blocks.has(block)) {
        if (works) pairs.softmax(block, loader.tables.seen(slot), values, scores, alpha);
        wait_for_copies<1>();  // values
        if (values != Values::kStored) {
          replace_values<T>(smem + kQueryBytes + kBlockBytes, kBlockBytes, values);
          __syncthreads();
        }
        if (works) Block::accumulate(scores, v_smem, p.v_dim, alpha, pairs.state);
        __syncthreads();  // they are read
      }
      load_values(blocks.has(next));
      block = next;
      if (blocks.has(next)) next = blocks.after(next);
    }
    cp_async_wait<0>();
    pairs.state.end_leaf();
  }

  // Of the lane's two pairs; null: no such pair.
  __device__ const float* query(int half) const {
    const int pair = pairs.lane_pair(half);
    return pair < pairs.item.num_pairs ? pairs.query(pair) : nullptr;
  }

  // The same in fp32, where keys and values take turns in one buffer.
  __device__ void run_float_leaf(int64_t leaf) {
    const LeafBlocks blocks{p, loader.tile, leaf};
    const bool works = pairs.warp_has_pairs();
    pairs.state.clear();
    KeyBlock block = blocks.first();
#pragma unroll 1
    for (int slot = 0; blocks.has(block); slot ^= 1, block = blocks.after(block)) {
      Scores scores;
      float alpha[2];
      __syncthreads();  // the values of the last block are read
      loader.find_block(block, slot);
      load_keys(true);
      wait_for_copies<0>();
      if (works) {
        const float* const q[2]{query(0), query(1)};
        Block::score(q, k_smem, p.k_dim, scores);
      }
      __syncthreads();  // the keys are read
      load_values(true);
      if (works) {
        pairs.softmax(block, loader.tables.seen(slot), Values::kStored, scores, alpha);
      }
      wait_for_copies<0>();
      if (works) {
        Block::accumulate(scores, reinterpret_cast<float*>(smem) + pairs.warp_pair * kBlockKeys,
                          reinterpret_cast<const float*>(smem + kQueryBytes), p.v_dim, alpha,
                          pairs.state);
      }
    }
    pairs.state.end_leaf();
  }

  __device__ void run(const TreeAttentionPlan& plan) {
    pairs.find_rows();
    if constexpr (kIsFloat) {
      pairs.run(plan, [&](int64_t leaf, Values) { run_float_leaf(leaf); });
    } else {
      pairs.load_queries(q_smem);
      do {
        pairs.run(plan, [&](int64_t leaf, Values values) { run_leaf(leaf, values); });
      } while (pairs.item.runs_again());
    }
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    tree_attention_kernel(const __grid_constant__ AttendParams a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ KeyTables tables;
  __shared__ AttentionItem item;
  if (threadIdx.x == 0) item.find(a, blockIdx.x);
  __syncthreads();
  if (item.num_pairs <= 0) return;
  Attend<T, kDim> attend(a, item, shared, tables);
  attend.run(a.plan);
  if (item.is_only_run) attend.pairs.write();
}

template <class T, int kDim>
cudaError_t launch_attend(const AttendParams& a, cudaStream_t stream) {
  constexpr int kBytes = Attend<T, kDim>::kSmemBytes;
  static_assert(kBytes + sizeof(KeyTables) + sizeof(AttentionItem) <= 99 * 1024);
  return launch_with_memory(tree_attention_kernel<T, kDim>, a.plan.num_items, kAttentionThreads,
                            kBytes, stream, a);
}

template <class T>
cudaError_t launch_all(const AttendParams& a, AttentionTile* tiles, cudaStream_t stream) {
  plan_tiles_kernel<T><<<1, kPlanThreads, 0, stream>>>(a.op, a.plan, tiles);
  if (a.plan.num_items == 0) return cudaGetLastError();
  cudaError_t error = cudaErrorInvalidValue;
  if (const auto sm90 = launch_attend_sm90(a, stream)) {
    error = *sm90;
  } else {
    (void)with_constant<64, 128, 256>(
        padded_head_dim(a.op), [&](auto padded) { error = launch_attend<T, padded()>(a, stream); });
  }
  if (error != cudaSuccess || a.plan.num_splits == 1) return error;
  const dim3 grid(static_cast<unsigned>(a.plan.num_items / a.plan.num_splits),
                  static_cast<unsigned>(merge_runs_ctas(a.op, a.plan)));
  merge_runs_kernel<T><<<grid, kMergeThreads, 0, stream>>>(a);
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
