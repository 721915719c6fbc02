// Rejection verification with a dense q, before the laws of the rows: the sum of each tile of q.
//
//   draft_sums   grid num_rows, num_tiles   8192 ids of one row
//                block kScanBlock = 128     64 ids per thread
//                smem 33 KB
//                reads q once
//
// Reference: python/dflash_ops/reference/rejection.py

#include <algorithm>
#include <cmath>

#include "verify/cuda/ids_sum.cuh"
#include "verify/cuda/rejection.cuh"
#include "verify/cuda/stages.h"

namespace dflash {
namespace {

__global__ void __launch_bounds__(kScanBlock)
    draft_sums_kernel(const __grid_constant__ RejectionLaunch c) {
  // Of each thread a column of 64 ids; one more, so that the ids of a column are in other banks.
  __shared__ float columns[kLseBlock][kScanBlock + 1];
  __shared__ LseNode nodes[kScanBlock / kWarpSize];
  const int64_t i = blockIdx.x, tile = blockIdx.y;
  const int64_t b = request_of_row(c.p.sampling, i, c.p.options.num_rows);
  if (row_task(c.logits(), i).is_padded() || !is_sampled(c.p, b)) return;
  const IdRange ids{tile * kTileIds, std::min((tile + 1) * kTileIds, c.p.draft_vocab_size)};
  const float* q = c.p.q.at<float>(i);
  bool is_bad = false;
  for (int k = 0; k < kLseBlock; ++k) {
    const int place = k * kScanBlock + static_cast<int>(threadIdx.x);
    const int64_t id = ids.first + place;
    const float value = id < ids.last ? q[id * c.p.q.strides[1]] : 0.0f;
    is_bad = is_bad || !(value >= 0.0f) || (value > 0.0f && target_id(c.p, id) < 0);
    columns[place % kLseBlock][place / kLseBlock] = value;
  }
  is_bad = __syncthreads_or(is_bad);
  const float total = sum_over_ids<kScanBlock>(nodes, ids, [&](int64_t) {
    float sum = 0.0f;
    for (int k = 0; k < kLseBlock; ++k) sum += columns[k][threadIdx.x];
    return sum;
  });
  if (threadIdx.x == 0) c.draft_sums[i * c.num_draft_tiles + tile] = is_bad ? NAN : total;
}

}  // namespace

cudaError_t launch_draft_sums(const RejectionLaunch& c, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(c.p.options.num_rows),
                  static_cast<uint32_t>(c.num_draft_tiles));
  draft_sums_kernel<<<grid, kScanBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace dflash
