// The draws of rows whose filter keeps more than the 64 best: as many rows as the workspace holds
// share a pass over the head, which writes their logits down, and are drawn from those. A pass that
// finds no such row ends at once, so there are as many launches for any data.
//
//   grid   rows of the workspace
//   block  kFinishBlock = 256
//   smem   43 KB
//   reads  the logits in memory once for every 250 kept ids
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "lm_head/cuda/finish.cuh"
#include "lm_head/cuda/flags.cuh"
#include "lm_head/cuda/passes.h"
#include "lm_head/plan.h"

namespace dflash {
namespace {

__device__ void put(const ArrayOut<1>& out, int64_t i, float value) {
  if (out) *out.at<float>(i) = value;
}

// memory: the logits as a call of sample_logits, of which slot `blockIdx.x` is a row.
__global__ void __launch_bounds__(kFinishBlock, 1)  // registers instead of spills
    head_draw_kernel(const __grid_constant__ HeadLaunch c,
                     const __grid_constant__ SampleLaunch memory,
                     const __grid_constant__ DrawOut out) {
  __shared__ KeptStorage shared;
  __shared__ StoredBest bests[KeptStorage::kWarps];
  const int64_t slot = blockIdx.x;
  const int64_t i = row_of_flag(c.flags, c.head.options.num_rows, c.stored.first_slot + slot);
  if (i < 0) return;
  const float lse = lse_of_row(c, i, &TileNodes::raw);
  const float tempered_lse = tempered_lse_of_row(c, i, lse);
  const RowTask task{{slot, -1, 0, 0, 0}, c.rows[i].law};
  const RowContext row{memory, task, slot, id_range(c.head.options), shared};
  keys_of_row(c, i, shared.keys);
  const float largest = key_value(shared.keys[0]) * task.law.inv_temperature;
  const float total = task.law.filter.needs_lse() ? exp_f32(tempered_lse - largest) : 0.0f;
  Best best;
  for_each_kept_in_passes(row, largest, total, [&](int64_t num_kept) {
    for (int64_t k = threadIdx.x; k < num_kept; k += kFinishBlock) {
      best.offer(offered(task.law, shared.keys[k]));
    }
  });
  best = best_of_warp(best);
  if (lane_index() == 0) bests[warp_index()] = stored(best);
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const StoredBest& other : bests) best.offer(static_cast<Best>(other));
  out.ids.set(i, best.id);
  put(out.logprobs, i, best.value - lse);
  put(out.values, i, best.value);
  put(out.scores, i, best.score);
  if (c.stored.first_slot > 0) c.head.status.add(i, kBoundTooSmall);
}

}  // namespace

cudaError_t launch_head_fallback(HeadLaunch c, int64_t max_fallback_rows, float* workspace,
                                 const DrawOut& out, cudaStream_t stream) {
  const SamplingOptions& o = c.sampling;
  const bool may_fall_back = o.temperature && (o.top_k || o.top_p || o.min_p);
  if (!may_fall_back) return cudaSuccess;
  const int64_t num_rows = c.head.options.num_rows;
  c.op = HeadOp::kStore;
  c.stored = {0, std::min(max_fallback_rows, num_rows), workspace,
              fallback_stride(c.head.options.num_columns)};
  SampleLaunch memory{};
  memory.p.logits = {workspace, DType::kF32, {c.stored.stride, 1}};
  memory.p.options.logit_scale = 1.0f;  // they are shaped already
  for (; c.stored.first_slot < num_rows; c.stored.first_slot += c.stored.num_slots) {
    if (const cudaError_t error = launch_head_scan(c, stream); error != cudaSuccess) return error;
    head_draw_kernel<<<c.stored.num_slots, kFinishBlock, 0, stream>>>(c, memory, out);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace dflash
