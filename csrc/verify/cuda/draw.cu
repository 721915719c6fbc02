// Rejection verification, the last two kernels: the token after each request's path (target_only:
// after each row).
//
//   draw_scan     grid num_tasks, num_tiles   8192 ids of one row
//                 block kScanBlock = 128      64 ids per thread
//                 smem 32 KB
//                 reads the logits of the rows that paths end at, a dense q likewise
//   draw_finish   a warp per task; reads a candidate per tile, and the logits that q lists
//
// Reference: python/dflash_ops/reference/rejection_tree.py

#include <cfloat>

#include "verify/cuda/rejection.cuh"
#include "verify/cuda/stages.h"

namespace dflash {
namespace {

constexpr int kWarps = kScanBlock / kWarpSize;

using Column = IdColumn<kLseBlock, kScanBlock>;

__device__ DrawTask draw_task(const RejectionLaunch& c, int64_t i) {
  if (!c.draws_every_row()) return c.tasks[i];
  DrawTask task{.row = -1};
  if (!c.rows[i].can_enter) return task;
  const SamplingOptions& o = c.p.sampling;
  const int64_t b = request_of_row(o, i, c.p.options.num_rows);
  const int64_t first = row_range(o.cu_verify, b, c.p.options.num_rows).first;
  task.row = i;
  task.noise = request_noise(o, kResidualStream, b, first, i - first);
  task.scale = 1.0f;
  return task;
}

// Leaves of the column what the scan draws from: the target's ids without those that q lists; with
// a dense q, log w of each id. Returns whether there may be any.
__device__ bool shape_column(const RejectionLaunch& c, const DrawTask& task, const TargetRow& row,
                             const Column& column, int64_t first_id) {
  const bool is_weighted = task.q == QKind::kDense;
  bool has_any = false;
  for (int k = 0; k < kLseBlock; ++k) {
    const int64_t id = first_id + k;
    float value = row.target.keeps(column[k], id) ? column[k] : kMinusInf;
    if (is_weighted && value > kMinusInf) {
      const float q = dense_q(c, task.row, row.q_total, id);
      const Taken at = taken_at(c, task.first, task.first_child, task.end_child, id, q);
      const float w = residual_weight(row.target.prob(value, id), at.taken, task.scale);
      value = w >= FLT_MIN ? log_f32(w) : kMinusInf;  // no logarithm of denormals
    }
    column[k] = value;
    has_any = has_any || value > kMinusInf;
  }
  if (task.q != QKind::kListed) return has_any;
  const Listed* listed = c.listed + task.row * c.list_width;
  for (int j = 0; j < row.num_listed; ++j) {
    const int64_t k = listed[j].id - first_id;
    if (k >= 0 && k < kLseBlock) column[static_cast<int>(k)] = kMinusInf;
  }
  return has_any;
}

__global__ void __launch_bounds__(kScanBlock)
    draw_scan_kernel(const __grid_constant__ RejectionLaunch c) {
  __shared__ float columns[kLseBlock][kScanBlock];
  __shared__ StoredBest bests[kWarps];
  const int64_t tile = blockIdx.y;
  const DrawTask task = draw_task(c, blockIdx.x);
  if (task.row < 0) return;
  const TargetRow& row = c.rows[task.row];
  if (row.only_id >= 0) return;
  const int64_t first_id = (c.scan.first_tile + tile) * kTileIds + int64_t{kLseBlock} * threadIdx.x;
  const Column column{&columns[0][threadIdx.x]};
  column.read(c.logits(), row.source, id_range(c.p.options), first_id);
  const float largest = shape_column(c, task, row, column, first_id) ? 0.0f : kMinusInf;
  const bool is_weighted = task.q == QKind::kDense;
  const float inv_temperature = is_weighted ? 1.0f : row.target.inv_temperature;
  Best best = best_of_warp(sampled_best(task.noise, inv_temperature, column, largest, first_id));
  if (lane_index() == 0) bests[warp_index()] = stored(best);
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) best.offer(static_cast<Best>(bests[w]));
  c.scan.tiles[task.row * c.scan.num_tiles + tile].best = stored(best);
}

// The draw from all of p, by a warp: of a row where a dense q leaves nothing.
__device__ Best draw_from_target(const RejectionLaunch& c, const DrawTask& task,
                                 const TargetRow& row) {
  Best best;
  const IdRange ids = id_range(c.p.options);
  for (int64_t id = ids.first + lane_index(); id < ids.last; id += kWarpSize) {
    const float z = logit_of(c, row, id);
    if (!row.target.keeps(z, id)) continue;
    best.offer(fmaf(z, row.target.inv_temperature, gumbel_at(task.noise, id)), z, id);
  }
  return best_of_warp(best);
}

// The best of what a record has besides what q lists, by a warp.
__device__ Best best_of_record(const RejectionLaunch& c, const DrawTask& task,
                               const TargetRow& row) {
  const Recorded* recorded = recorded_of(c, task.row);
  const Listed* listed = c.listed + task.row * c.list_width;
  const int num_listed = task.q == QKind::kListed ? row.num_listed : 0;
  Best best = row.rest;
  for (int j = lane_index(); j < row.num_recorded; j += kWarpSize) {
    const auto [id, z] = recorded[j];
    bool is_asked = row.target.keeps(z, id);
    for (int k = 0; k < num_listed; ++k) is_asked = is_asked && listed[k].id != id;
    if (!is_asked) continue;
    best.offer(fmaf(z, row.target.inv_temperature, gumbel_at(task.noise, id)), z, id);
  }
  return best_of_warp(best);
}

// The draw from w, or from p if w is nothing. rest: the best of the ids that q does not list.
__device__ Best draw_with_list(const RejectionLaunch& c, const DrawTask& task, const TargetRow& row,
                               const Best& rest) {
  const TargetLaw& target = row.target;
  const Listed* listed = c.listed + task.row * c.list_width;
  const int num_listed = task.q == QKind::kListed ? row.num_listed : 0;
  Best best, of_target = rest;
  if (rest.id >= 0 && task.scale >= FLT_MIN) {
    best = {rest.score + (log_f32(task.scale) - target.log_norm()), rest.value, rest.id};
  }
  for (int j = lane_index(); j < num_listed; j += kWarpSize) {
    const int64_t id = listed[j].id;
    const float z = logit_of(c, row, id);
    if (!target.keeps(z, id)) continue;
    const float g = gumbel_at(task.noise, id);
    const float w = residual_weight(target.prob(z, id), listed[j].q, task.scale);
    if (w >= FLT_MIN) best.offer(log_f32(w) + g, z, id);
    of_target.offer(fmaf(z, target.inv_temperature, g), z, id);
  }
  best = best_of_warp(best);
  return best.id >= 0 ? best : best_of_warp(of_target);
}

__device__ Best best_of_tiles(const RejectionLaunch& c, const DrawTask& task) {
  Best best;
  for (int64_t tile = lane_index(); tile < c.scan.num_tiles; tile += kWarpSize) {
    best.offer(static_cast<Best>(c.scan.tiles[task.row * c.scan.num_tiles + tile].best));
  }
  return best_of_warp(best);
}

__global__ void __launch_bounds__(kDrawBlock)
    draw_finish_kernel(const __grid_constant__ RejectionLaunch c,
                       const __grid_constant__ int64_t num_tasks) {
  const int64_t i = warp_of_grid();
  if (i >= num_tasks) return;
  const DrawTask task = draw_task(c, i);
  if (task.row < 0) return;
  const TargetRow& row = c.rows[task.row];
  int64_t id = row.only_id;
  float logprob = kMinusInf;
  if (id < 0) {
    Best best = c.recorded != nullptr ? best_of_record(c, task, row) : best_of_tiles(c, task);
    if (task.q != QKind::kDense) {
      best = draw_with_list(c, task, row, best);
    } else if (best.id < 0) {
      best = draw_from_target(c, task, row);
    } else {
      best.value = logit_of(c, row, best.id);  // was log w
    }
    id = best.id;
    if (id >= 0 && best.value > kMinusInf) logprob = best.value - row.lse;
  }
  if (lane_index() != 0) return;
  if (c.draws_every_row()) {
    c.nodes[task.row].last_id = id;
    c.nodes[task.row].last_logprob = logprob;
  } else if (task.col >= 0) {
    c.p.emitted.set(task.b, task.col, id);
    c.p.logprobs.at<float>(task.b)[task.col * c.p.logprobs.strides[1]] = logprob;
  }
}

}  // namespace

cudaError_t launch_draw(const RejectionLaunch& c, cudaStream_t stream) {
  const int64_t num_tasks = c.draws_every_row() ? c.p.options.num_rows : c.p.sampling.num_requests;
  if (c.recorded == nullptr) {
    const dim3 grid(static_cast<uint32_t>(num_tasks), static_cast<uint32_t>(c.scan.num_tiles));
    draw_scan_kernel<<<grid, kScanBlock, 0, stream>>>(c);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  constexpr int kTasksPerCta = kDrawBlock / kWarpSize;
  const int64_t num_ctas = (num_tasks + kTasksPerCta - 1) / kTasksPerCta;
  draw_finish_kernel<<<num_ctas, kDrawBlock, 0, stream>>>(c, num_tasks);
  return cudaGetLastError();
}

}  // namespace dflash
