// The rows of an lm_head op, worked out once: whose they are, what they want to know, and their x,
// gathered and normed, where the pass over the head reads them.
//
//   grid   num_rows
//   block  kRmsChains = 256
//   smem   1 KB
//   reads  each row of h once, with a norm once more from the cache
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "device/rms.cuh"
#include "gemm/cuda/quant_rows.cuh"
#include "lm_head/cuda/passes.h"

namespace dflash {
namespace {

template <class T>
__global__ void __launch_bounds__(kRmsChains)
    head_rows_kernel(const __grid_constant__ HeadLaunch c) {
  const int64_t i = blockIdx.x, depth = c.head.weight.depth, pitch = c.plan.x_pitch;
  if (threadIdx.x == 0) {
    memset(c.rows + i, 0, sizeof(HeadRow));  // its padding too: rows are copied whole
    c.rows[i] = head_row(c, i);
  }
  const int64_t row = row_source(c.head.options, i).row;
  const T* from = c.head.h.at<T>(row < 0 ? 0 : row);
  const bool is_normed = row >= 0 && c.head.norm_weight;
  const float scale = is_normed ? cta_rms_scale(from, depth, c.head.eps) : 0.0f;
  for (int64_t k = int64_t{kVector} * threadIdx.x; k < depth; k += kVector * kRmsChains) {
    float values[kVector] = {};  // of a padded row
    if (is_normed) {
      load_normed(from, c.head.norm_weight, k, depth, scale, values);
    } else if (row >= 0) {
      load_vector(from + k, 1, depth - k, values);
    }
    const int64_t at = i * pitch + k;
    if (c.head.weight.quant) {
      split_vector(c.plan.quant_rows, static_cast<BF16*>(c.x) + at, values);
    } else {
      store_vector(static_cast<T*>(c.x) + at, 1, depth - k, values);
    }
  }
}

}  // namespace

cudaError_t launch_head_rows(const HeadLaunch& c, cudaStream_t stream) {
  (void)with_dtype<float, BF16, F16>(c.head.h.dtype, [&]<class T>(std::type_identity<T>) {
    head_rows_kernel<T><<<c.head.options.num_rows, kRmsChains, 0, stream>>>(c);
  });
  return cudaGetLastError();
}

}  // namespace dflash
