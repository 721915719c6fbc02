// rmsnorm: rows over their root mean square, times a weight.
//
//   grid   num_rows                one CTA per row
//   block  256 threads
//   smem   a float per warp
//   reads  the row twice, the second time from cache; the weight once
//
// L1: thread j sums the squares of elements j, j + 256, .. by fmaf from zero; the lanes of a warp
// are added in a butterfly, the warps in ascending order. H alone fixes that.
//
// Reference: python/dflash_ops/reference/gemm.py

#include "common/dispatch.h"
#include "device/elements.cuh"
#include "device/warp.cuh"
#include "gemm/cuda/launch.h"

namespace dflash {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

// The sum over the CTA, for all its threads.
__device__ float sum_of_cta(float value) {
  __shared__ float sums[kWarps];
#pragma unroll
  for (int width = 1; width < kWarpSize; width *= 2) {
    value += __shfl_xor_sync(kFullMask, value, width);
  }
  if (lane_index() == 0) sums[warp_index()] = value;
  __syncthreads();
  float sum = sums[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += sums[warp];
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_kernel(const __grid_constant__ RmsNormParams p) {
  const int64_t row = blockIdx.x;
  const T* x = p.x.at<T>(row);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.depth; i += kThreads) {
    const float value = to_float(x[i]);
    squares = fmaf(value, value, squares);
  }
  const float mean = sum_of_cta(squares) / static_cast<float>(p.depth);
  const float scale = 1.0f / sqrtf(mean + p.eps);
  const ArrayView<2> weight{p.weight.data, p.weight.dtype, {0, p.weight.strides[0]}};
  for (int64_t i = threadIdx.x; i < p.depth; i += kThreads) {
    const float normed = to_float(x[i]) * scale * load_element(weight, 0, i);
    store_element(p.out, row, i, to_float(from_float<T>(normed)));
  }
}

}  // namespace

cudaError_t launch_rmsnorm(const RmsNormParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.depth == 0) return cudaSuccess;  // 0 CTAs are a launch error
  (void)with_dtype<float, BF16, F16>(p.x.dtype, [&](auto type) {
    rmsnorm_kernel<typename decltype(type)::type><<<p.num_rows, kThreads, 0, stream>>>(p);
  });
  return cudaGetLastError();
}

}  // namespace dflash
