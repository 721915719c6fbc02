// lm_head_topk: after the pass over the head, a row's best of all CTAs.
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

__global__ void __launch_bounds__(kFinishBlock)
    head_topk_kernel(const __grid_constant__ HeadLaunch c,
                     const __grid_constant__ LmHeadTopkParams p) {
  __shared__ uint64_t keys[KeptStorage::kListKeys];
  const int64_t i = blockIdx.x, j = threadIdx.x;
  const HeadRow& row = c.rows[i];
  float lse = kMinusInf;
  int64_t lowest = -1;
  int32_t status = row.status();
  uint64_t key = 0;  // the j-th
  if (!row.is_padded()) {
    lse = lse_of_row(c, i, &TileNodes::raw);
    if (row.pick == Pick::kTop) {
      keys_of_row(c, i, keys);
      if (j < p.k) key = keys[j];
    } else {
      const Best best = best_of_row(c, i);
      if (best.id >= 0) key = candidate_key(best.value, best.id);
    }
    if (lse == kMinusInf && warp_index() == 0) {
      lowest = lowest_allowed(c.head.options, row.source, id_range(c.head.options));
      status |= kNoFiniteLogit;
    }
  }
  if (j < p.k) {
    p.values.at<float>(i)[j * p.values.strides[1]] = key != 0 ? key_value(key) : kMinusInf;
    p.ids.set(i, j, key != 0 ? key_id(key) : j == 0 ? lowest : -1);
  }
  if (j > 0) return;
  *p.lse.at<float>(i) = lse;
  c.head.status.add(i, status);
}

}  // namespace

cudaError_t launch_lm_head_topk(const LmHeadTopkParams& p, void* workspace, cudaStream_t stream) {
  if (p.head.options.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  HeadLaunch c = head_launch(HeadOp::kTopk, p.head, workspace);
  c.k = p.k;
  if (const cudaError_t error = launch_head_rows(c, stream); error != cudaSuccess) return error;
  if (const cudaError_t error = launch_head_scan(c, stream); error != cudaSuccess) return error;
  head_topk_kernel<<<p.head.options.num_rows, kFinishBlock, 0, stream>>>(c, p);
  return cudaGetLastError();
}

}  // namespace dflash
