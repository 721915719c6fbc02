// lm_head_verify: after the pass over the head, which has written the given ids' logits, the rest
// of a row's record from what its CTAs say. The draws of rows that are not covered follow: see
// head_fallback.cu.
//
//   grid   num_rows
//   block  kFinishBlock = 256
//   smem   4 KB
//   reads  what the CTAs left: see head_scan.cu
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "lm_head/cuda/finish.cuh"
#include "lm_head/cuda/launch.h"
#include "lm_head/cuda/passes.h"

namespace dflash {
namespace {

// A row's record but for the given ids' logits.
struct Record {
  float lse = kMinusInf;
  float tempered_lse = kMinusInf;
  Best rest;
  uint64_t top_key = 0;  // of this thread's rank
  int64_t lowest = -1;   // of a row without a finite logit
  bool is_covered = false;
  bool is_unknown = false;  // the row's draw is still to be made
};

__device__ Record record_of(const HeadLaunch& c, int64_t i, uint64_t* keys, float* terms) {
  const HeadRow& row = c.rows[i];
  Record record;
  if (row.is_padded()) return record;
  const float lse = lse_of_row(c, i, &TileNodes::raw);
  record.lse = lse;
  record.tempered_lse = tempered_lse_of_row(c, i, lse);
  if (lse == kMinusInf) {
    record.lowest = lowest_allowed(c.head.options, row.source, id_range(c.head.options));
    record.is_covered = true;
  } else if (row.pick == Pick::kTop) {
    keys_of_row(c, i, keys);
    if (!is_shard(c.head.options)) {
      record.is_covered = kept_of_keys(row.law, keys, terms, record.tempered_lse).num_kept >= 0;
      record.is_unknown = !record.is_covered;
    }
    if (threadIdx.x < WarpKeys::kCount) record.top_key = keys[threadIdx.x];
  } else {
    const Best best = best_of_row(c, i);
    record.is_covered = row.pick == Pick::kLargest;
    if (!record.is_covered) record.rest = best;
    if (record.is_covered && threadIdx.x == 0) {
      record.top_key = candidate_key(best.value, best.id);
    }
  }
  return record;
}

__global__ void __launch_bounds__(kFinishBlock)
    head_verify_kernel(const __grid_constant__ HeadLaunch c,
                       const __grid_constant__ LmHeadVerifyParams p) {
  __shared__ uint64_t keys[KeptStorage::kListKeys];
  __shared__ float terms[WarpKeys::kCount];
  const int64_t i = blockIdx.x, j = threadIdx.x;
  const HeadRow& row = c.rows[i];
  const IdRange ids = id_range(c.head.options);
  const int64_t id = j < p.ids.num_cols ? p.ids(i, j) : -1;
  const bool has_bad_id = __syncthreads_or(id < -1 || id >= p.head.options.vocab_size);
  const Record record = record_of(c, i, keys, terms);
  if (j < p.ids.num_cols && (row.is_padded() || id < ids.first || id >= ids.last)) {
    p.values.at<float>(i)[j * p.values.strides[1]] = kMinusInf;
  }
  if (j < WarpKeys::kCount) {
    const uint64_t key = record.top_key;
    p.top_values.at<float>(i)[j * p.top_values.strides[1]] = key != 0 ? key_value(key) : kMinusInf;
    p.top_ids.set(i, j, key != 0 ? key_id(key) : j == 0 ? record.lowest : -1);
  }
  if (j > 0) return;
  *p.lse.at<float>(i) = record.lse;
  *p.tempered_lse.at<float>(i) = record.tempered_lse;
  const bool has_rest = record.rest.id >= 0;
  p.rest_ids.set(i, record.rest.id);
  *p.rest_values.at<float>(i) = has_rest ? record.rest.value : kMinusInf;
  *p.rest_keys.at<float>(i) = has_rest ? record.rest.score : kMinusInf;
  c.flags[i] = record.is_unknown;
  p.covered[i * p.covered_stride] = record.is_covered;
  const bool has_no_logit = !row.is_padded() && record.lse == kMinusInf;
  p.head.status.add(
      i, row.status() | (has_bad_id ? kBadDraftId : 0) | (has_no_logit ? kNoFiniteLogit : 0));
}

}  // namespace

cudaError_t launch_lm_head_verify(const LmHeadVerifyParams& p, void* workspace,
                                  cudaStream_t stream) {
  if (p.head.options.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  HeadLaunch c = head_launch(HeadOp::kVerify, p.head, workspace);
  c.sampling = p.sampling;
  c.ids = p.ids;
  c.values = p.values;
  if (const cudaError_t error = launch_head_rows(c, stream); error != cudaSuccess) return error;
  if (const cudaError_t error = launch_head_scan(c, stream); error != cudaSuccess) return error;
  head_verify_kernel<<<p.head.options.num_rows, kFinishBlock, 0, stream>>>(c, p);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const DrawOut out{p.rest_ids, {}, p.rest_values, p.rest_keys};
  return launch_head_fallback(c, p.max_fallback_rows, p.workspace, out, stream);
}

}  // namespace dflash
