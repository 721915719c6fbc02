// lm_head_sample: after the pass over the head, a row's token from what its CTAs say. Rows whose
// filter keeps more than the 64 best are flagged: see head_fallback.cu.
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

struct Token {
  int64_t id;
  float logprob;
  int32_t status;
};

// By one warp.
__device__ Token token_of(const HeadLaunch& c, const RowSource& source, const Best& best,
                          float lse) {
  if (best.id >= 0) return {best.id, best.value - lse, 0};
  const LogitOptions& o = c.head.options;
  return {lowest_allowed(o, source, id_range(o)), kMinusInf, kNoFiniteLogit};
}

__global__ void __launch_bounds__(kFinishBlock)
    head_sample_kernel(const __grid_constant__ HeadLaunch c,
                       const __grid_constant__ LmHeadSampleParams p) {
  __shared__ uint64_t keys[KeptStorage::kListKeys];
  __shared__ float terms[WarpKeys::kCount];
  const int64_t i = blockIdx.x;
  const HeadRow& row = c.rows[i];
  Token token{-1, 0.0f, 0};
  bool is_known = true;
  if (!row.is_padded()) {
    const float lse = lse_of_row(c, i, &TileNodes::raw);
    Best best;
    if (row.pick == Pick::kTop) {
      keys_of_row(c, i, keys);
      const float tempered_lse = tempered_lse_of_row(c, i, lse);
      const KeptKeys kept = kept_of_keys(row.law, keys, terms, tempered_lse);
      is_known = kept.num_kept >= 0;
      if (is_known) best = draw_of_warp(row.law, keys, kept.num_kept);
    } else {
      best = best_of_row(c, i);
    }
    if (warp_index() != 0) return;
    if (is_known) token = token_of(c, row.source, best, lse);
  }
  if (threadIdx.x != 0) return;
  c.flags[i] = !is_known;
  p.ids.set(i, token.id);
  *p.logprobs.at<float>(i) = token.logprob;
  p.head.status.add(i, row.status() | token.status);
}

}  // namespace

cudaError_t launch_lm_head_sample(const LmHeadSampleParams& p, void* workspace,
                                  cudaStream_t stream) {
  const int64_t num_rows = p.head.options.num_rows;
  if (num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  HeadLaunch c = head_launch(HeadOp::kSample, p.head, workspace);
  c.sampling = p.sampling;
  if (const cudaError_t error = launch_head_rows(c, stream); error != cudaSuccess) return error;
  if (const cudaError_t error = launch_head_scan(c, stream); error != cudaSuccess) return error;
  head_sample_kernel<<<num_rows, kFinishBlock, 0, stream>>>(c, p);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const DrawOut out{p.ids, p.logprobs, {}, {}};
  return launch_head_fallback(c, p.max_fallback_rows, p.workspace, out, stream);
}

}  // namespace dflash
