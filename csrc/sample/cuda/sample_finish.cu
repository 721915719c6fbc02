// sample_logits, second kernel: the token of a row from what its tiles say.
//
//   grid   num_rows
//   block  kFinishBlock = 256
//   smem   43 KB
//   reads  the tiles' results; the logits again only where a filter keeps more than 64 ids
//
// Reference: python/dflash_ops/reference/sample.py

#include "sample/cuda/kept.cuh"
#include "sample/cuda/stages.h"

namespace dflash {
namespace {

// By the whole CTA.
__device__ Best filtered_best(const RowContext& row, float tempered_lse) {
  __shared__ StoredBest bests[KeptStorage::kWarps];
  Best best;
  for_each_kept(row, tempered_lse, [&](int64_t num_kept) {
    for (int64_t k = threadIdx.x; k < num_kept; k += kFinishBlock) {
      best.offer(offered(row.task.law, row.shared.keys[k]));
    }
  });
  best = best_of_warp(best);
  if (lane_index() == 0) bests[warp_index()] = stored(best);
  __syncthreads();
  for (const StoredBest& other : bests) best.offer(static_cast<Best>(other));
  return best;
}

__global__ void __launch_bounds__(kFinishBlock, 1)  // registers instead of spills
    sample_finish_kernel(const __grid_constant__ SampleLaunch c) {
  __shared__ KeptStorage shared;
  const int64_t i = blockIdx.x;
  const RowTask task = row_task(c.p, i);
  const RowContext row{c, task, i, id_range(c.p.options), shared};
  int64_t id = -1;
  float logprob = 0.0f;
  int32_t status = task.source.status | task.law.status;
  if (!task.is_padded()) {
    const TileResult* tiles = c.tiles + i * c.num_tiles;
    const float lse = lse_of(merge_tiles(c, [&](int64_t t) { return tiles[t].raw; }));
    Best best;
    if (task.law.is_filtered()) {
      float tempered_lse = lse;
      if (needs_tempered(task.law)) {
        tempered_lse = lse_of(merge_tiles(c, [&](int64_t t) { return tiles[t].tempered; }));
      }
      best = filtered_best(row, tempered_lse);
    } else {
      for (int64_t t = lane_index(); t < c.num_tiles; t += kWarpSize) best.offer(tiles[t].best);
      best = best_of_warp(best);
    }
    if (warp_index() != 0) return;
    if (best.id >= 0) {
      id = best.id;
      logprob = best.value - lse;
    } else {
      id = lowest_allowed(c.p.options, task.source, row.ids);
      logprob = kMinusInf;
      status |= kNoFiniteLogit;
    }
  }
  if (threadIdx.x != 0) return;
  c.p.ids.set(i, id);
  *c.p.logprobs.at<float>(i) = logprob;
  c.p.status.add(i, status);
}

}  // namespace

cudaError_t launch_sample_finish(const SampleLaunch& c, cudaStream_t stream) {
  sample_finish_kernel<<<c.p.options.num_rows, kFinishBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace dflash
