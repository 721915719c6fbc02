// tree_attention on sm_90a, bf16 and fp16: wgmma on tiles that other warps bring.
//
//   grid   the portable body's: a CTA per (tile, KV head, run of leaves)
//   block  192: four warps that compute, 16 (row, query head) pairs each; a warp that brings keys,
//          a warp that brings values
//   smem   q, and a ring of 10 tiles (D > 128: 5) of 64 keys or values; all but one are under way
//   reads  keys and values once per tile; a tree's own blocks once more per row
//
// L1: all of a row's blocks, shared or its own, go through the same instructions, m64n64k16;
// whatever stands in the other 63 rows of it. Positions, leaves and merges are those of the
// portable body, and so is all arithmetic but the products.
//
// Reference: python/dflash_ops/reference/attention.py

#include "attention/cuda/launch_sm90.h"
#include "attention/cuda/pairs.cuh"
#include "attention/cuda/tiles_sm90.cuh"
#include "device/launch_sm90.cuh"
#include "device/wgmma_rows.cuh"

namespace dflash {
namespace {

// The four warps that compute.
template <class T, int kDim>
struct TileConsumer {
  static constexpr int kBarrier = 1;  // of these warps

  const TreeAttentionParams& p;
  AttentionStorage<kDim>& shared;
  TilePairs<T, kDim> pairs;
  Ring<AttentionStorage<kDim>::kStages> ring{0};

  __device__ TileConsumer(const AttendParams& a, AttentionStorage<kDim>& storage)
      : p(a.op), shared(storage), pairs(a, storage.item) {}

  __device__ void begin() {
    pairs.find_rows();
    pairs.load_queries(shared_address(shared.queries));
    fence_proxy_async();
    barrier_sync(kBarrier, kConsumerThreads);
  }

  __device__ uint32_t tile() const { return shared_address(shared.tiles[ring.stage]); }
  __device__ void wait_for_tile() const {
    mbarrier_wait(shared_address(&shared.full[ring.stage]), ring.parity);
    fence_proxy_async();  // of what cp.async and stores have brought
  }
  __device__ void release_tile() {
    __syncwarp();
    if (lane_index() == 0) mbarrier_arrive(shared_address(&shared.empty[ring.stage]));
    ring.advance();
  }

  __device__ void score(Scores& scores) const {
    const uint64_t q = matrix_of_128_byte_rows(shared_address(shared.queries));
    const uint64_t k = matrix_of_128_byte_rows(tile());
    constexpr int kSteps = kColumn / 16;
    keep_sums(scores);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (step / kSteps >= num_columns(p.k_dim)) break;
      const int at = (step / kSteps * kColumnBytes + step % kSteps * 32) >> 4;
      if (step == 0) {
        wgmma<T, false>(scores, q, k);
      } else {
        wgmma<T>(scores, q + at, k + at);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep_sums(scores);
  }

  // Values of 64 columns at a time: their sums over the block, from zero, join the pairs' own. They
  // take the registers of the weights, which are rounded first.
  __device__ void accumulate(Scores& sums, const float (&alpha)[2], bool works) {
    static_assert(kColumn == kBlockKeys);
    const RoundedWeights<T> weights(sums);
#pragma unroll
    for (int column = 0; column < kDim / kColumn; ++column) {
      if (column >= num_columns(p.v_dim)) break;
      const uint64_t v = matrix_of_128_byte_rows(tile() + column * kColumnBytes);
      keep_sums(sums);
      wgmma_fence();
      wgmma_of_registers<T, false>(sums, weights.a[0], v);
#pragma unroll
      for (int step = 1; step < kBlockKeys / 16; ++step) {
        wgmma_of_registers<T, true>(sums, weights.a[step], v + (16 * 128 * step >> 4));
      }
      wgmma_commit();
      wgmma_wait<0>();
      keep_sums(sums);
      if (!works) continue;
#pragma unroll
      for (int i = 0; i < kColumn / 2; ++i) {
        float& out = pairs.state.out[column * (kColumn / 8) + i / 4][i % 4];
        out = fmaf(out, alpha[i % 4 / 2], sums[i / 4][i % 4]);
      }
    }
  }

  // One leaf, from an empty state.
  __device__ void run_leaf(int64_t leaf, Values values) {
    const LeafBlocks blocks{p, shared.item.tile, leaf};
    const bool works = pairs.warp_has_pairs();
    pairs.state.clear();
#pragma unroll 1
    for (KeyBlock block = blocks.first(); blocks.has(block); block = blocks.after(block)) {
      Scores scores;
      float alpha[2];
      wait_for_tile();  // keys
      const KeysSeen keys{shared.present[ring.stage], nullptr, nullptr};
      score(scores);
      release_tile();
      if (works) pairs.softmax(block, keys, values, scores, alpha);
      wait_for_tile();  // values
      if (values != Values::kStored) {
        replace_values<T>(shared.tiles[ring.stage], num_columns(p.v_dim) * kColumnBytes, values);
        fence_proxy_async();
        barrier_sync(kBarrier, kConsumerThreads);
      }
      accumulate(scores, alpha, works);
      release_tile();
    }
    pairs.state.end_leaf();
  }

  __device__ void run(const TreeAttentionPlan& plan) {
    pairs.run(plan, [&](int64_t leaf, Values values) { run_leaf(leaf, values); });
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__(kSm90Threads)
    tree_attention_sm90_kernel(const __grid_constant__ AttendParams a) {
  extern __shared__ __align__(1024) char bytes[];
  auto& shared = *reinterpret_cast<AttentionStorage<kDim>*>(bytes);
  grid_wait();  // the list of tiles; keys and values
  if (threadIdx.x == 0) {
    shared.init_barriers();
    shared.item.find(a, blockIdx.x);
  }
  __syncthreads();
  if (shared.item.num_pairs <= 0) return;
  if (warp_index() < kAttentionWarps) {
    TileConsumer<T, kDim> consumer(a, shared);
    consumer.begin();
    do {
      consumer.run(a.plan);
    } while (shared.item.runs_again());
    if (shared.item.is_only_run) consumer.pairs.write();
  } else {
    TileProducer<T, kDim> producer(a.op, shared, warp_index() > kAttentionWarps);
    do {
      producer.run();
    } while (shared.item.runs_again());
  }
}

template <class T, int kDim>
cudaError_t launch(const AttendParams& a, cudaStream_t stream) {
  constexpr int kBytes = sizeof(AttentionStorage<kDim>);
  static_assert(kBytes <= 227 * 1024);
  return launch_cluster(tree_attention_sm90_kernel<T, kDim>, a.plan.num_items, 1, kSm90Threads,
                        kBytes, stream, a);
}

}  // namespace

std::optional<cudaError_t> launch_attend_sm90(const AttendParams& a, cudaStream_t stream) {
  const DType dtype = a.op.q.dtype;
  if (!is_sm90() || a.op.k_cache.dtype != dtype || a.op.v_cache.dtype != dtype) return {};
  std::optional<cudaError_t> error;
  (void)with_dtype<BF16, F16>(dtype, [&]<class T>(std::type_identity<T>) {
    const bool is_wide = padded_head_dim(a.op) > 128;
    error = is_wide ? launch<T, 256>(a, stream) : launch<T, 128>(a, stream);
  });
  return error;
}

}  // namespace dflash
