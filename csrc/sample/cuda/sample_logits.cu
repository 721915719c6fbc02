// sample_logits, first kernel: what each tile of a row's vocabulary has to say of its token.
//
//   grid   num_rows, num_tiles       8192 ids of one row
//   block  kScanBlock = 128          64 ids per thread
//   smem   37 KB
//   reads  the logits once; writes 32 B per tile, with a filter 512 B more
//
// A thread keeps its 64 logits in a column of shared memory that is its own, so its passes over
// them (shape, maximum, sum, choice) wait for no one. Warps without a finite logit pass.
//
// Reference: python/dflash_ops/reference/sample.py

#include "device/top_keys.cuh"
#include "sample/cuda/launch.h"
#include "sample/cuda/scan.cuh"
#include "sample/cuda/stages.h"

namespace dflash {
namespace {

constexpr int kWarps = kScanBlock / kWarpSize;

using Column = IdColumn<kLseBlock, kScanBlock>;

struct SharedStorage {
  union {
    float columns[kLseBlock][kScanBlock];
    uint64_t lists[kWarps][WarpKeys::kCount];  // when the columns have been read
  };
  uint64_t pending[kWarps][WarpTopKeys::kPending];
  TileResult results[kWarps];
};

__device__ LseNode node_of_column(const Column& column, float largest, float inv_temperature) {
  if (!__any_sync(kFullMask, largest > kMinusInf)) return {kMinusInf, 0.0f};
  return node_of(column, largest, inv_temperature);
}

__device__ Best greedy_best(const Column& column, float largest, int64_t first_id) {
  Best best;
  if (largest == kMinusInf) return best;
  int k = 0;
  while (column[k] != largest) ++k;
  best.offer(largest, largest, first_id + k);
  return best;
}

// The 64 best keys of the tile, for warp 0.
__device__ WarpKeys top_of_tile(const Column& column, int64_t first_id, SharedStorage& shared) {
  WarpTopKeys top(shared.pending[warp_index()]);
  for (int k = 0; k < kLseBlock; ++k) {
    const float z = column[k];
    top.offer(z > kMinusInf, candidate_key(z, first_id + k));
  }
  WarpKeys best = top.finish();
  __syncthreads();  // every column has been read
  best.store(shared.lists[warp_index()]);
  __syncthreads();
  for (int w = 1; warp_index() == 0 && w < kWarps; ++w) {
    WarpKeys other;
    other.load(shared.lists[w], WarpKeys::kCount);
    best.merge(other);
  }
  return best;
}

__global__ void __launch_bounds__(kScanBlock)
    sample_scan_kernel(const __grid_constant__ SampleLaunch c) {
  __shared__ SharedStorage shared;
  const int64_t i = blockIdx.x, tile = blockIdx.y;
  const RowTask task = row_task(c.p, i);
  if (task.is_padded()) return;
  const RowLaw& law = task.law;
  const int64_t first_id = (c.first_tile + tile) * kTileIds + int64_t{kLseBlock} * threadIdx.x;
  const Column column{&shared.columns[0][threadIdx.x]};
  const float largest = column.read(c.p, task.source, id_range(c.p.options), first_id);

  TileResult result{{kMinusInf, 0.0f}, {kMinusInf, 0.0f}, stored({})};
  result.raw = merge_lse_of_warp(node_of_column(column, largest, 1.0f));
  if (c.needs_tempered(law)) {
    result.tempered = merge_lse_of_warp(node_of_column(column, largest, law.inv_temperature));
  }
  const int64_t slot = i * c.num_tiles + tile;
  if (law.is_filtered()) {
    const WarpKeys best = top_of_tile(column, first_id, shared);
    if (warp_index() == 0) best.store(c.keys + slot * WarpKeys::kCount);
  } else if (law.is_greedy) {
    result.best = stored(best_of_warp(greedy_best(column, largest, first_id)));
  } else if (!c.is_law) {
    const Best best = sampled_best(law.noise, law.inv_temperature, column, largest, first_id);
    result.best = stored(best_of_warp(best));
  }
  if (lane_index() == 0) shared.results[warp_index()] = result;
  __syncthreads();
  if (threadIdx.x != 0) return;
  const auto& r = shared.results;
  result.raw = merge_lse(merge_lse(r[0].raw, r[1].raw), merge_lse(r[2].raw, r[3].raw));
  result.tempered =
      merge_lse(merge_lse(r[0].tempered, r[1].tempered), merge_lse(r[2].tempered, r[3].tempered));
  Best best = r[0].best;
  for (int w = 1; w < kWarps; ++w) best.offer(r[w].best);
  result.best = stored(best);
  c.tiles[slot] = result;
}

}  // namespace

cudaError_t launch_sample_scan(const SampleLaunch& c, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(c.p.options.num_rows), static_cast<uint32_t>(c.num_tiles));
  sample_scan_kernel<<<grid, kScanBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

cudaError_t launch_sample_logits(const SampleLogitsParams& p, void* workspace,
                                 cudaStream_t stream) {
  if (p.options.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const SampleLaunch c = sample_launch(p, false, workspace);
  if (const cudaError_t error = launch_sample_scan(c, stream); error != cudaSuccess) return error;
  return launch_sample_finish(c, stream);
}

}  // namespace dflash
