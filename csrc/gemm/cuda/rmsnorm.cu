// rmsnorm: each row over its root mean square, times the weight, rounded to the dtype of x.
//
//   grid   num_rows                  one row per CTA
//   block  kRmsChains = 256
//   smem   1 KB
//   reads  x from memory once, and once more from the cache; the weight from the cache
//
// Reference: python/dflash_ops/reference/gemm.py

#include "device/rms.cuh"
#include "gemm/cuda/launch.h"

namespace dflash {
namespace {

template <class T>
__global__ void __launch_bounds__(kRmsChains)
    rmsnorm_kernel(const __grid_constant__ RmsNormParams p) {
  const int64_t row = blockIdx.x;
  if (p.row_count != nullptr && row >= *p.row_count) return;
  const T* x = p.x.at<T>(row);
  const float scale = cta_rms_scale(x, p.depth, p.eps);
  for (int64_t i = int64_t{kVector} * threadIdx.x; i < p.depth; i += kVector * kRmsChains) {
    const int64_t count = p.depth - i;
    float values[kVector];
    load_normed(x, p.weight, i, p.depth, scale, values);
    (void)with_dtype<float, BF16, F16>(p.out.dtype, [&]<class U>(std::type_identity<U>) {
      store_vector(p.out.at<U>(row) + i * p.out.strides[1], p.out.strides[1], count, values);
    });
  }
}

}  // namespace

cudaError_t launch_rmsnorm(const RmsNormParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  (void)with_dtype<float, BF16, F16>(p.x.dtype, [&]<class T>(std::type_identity<T>) {
    rmsnorm_kernel<T><<<p.num_rows, kRmsChains, 0, stream>>>(p);
  });
  return cudaGetLastError();
}

}  // namespace dflash
