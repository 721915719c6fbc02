// sum_shards: tensor-parallel partials of each row added in rank order, the residual, the norm.
//
//   grid   num_rows                  one row per CTA
//   block  kRmsChains = 256
//   smem   1 KB
//   reads  shards and residual once; a norm reads the sum again, each thread what it wrote itself
//
// Elements belong to threads as to the chains of device/rms.cuh, so the norm has rmsnorm's bits.
//
// Reference: python/dflash_ops/reference/shards.py

#include "common/rms.h"
#include "device/rms.cuh"
#include "gemm/cuda/launch.h"

namespace dflash {
namespace {

// Elements first .. first + 7 of a row, in fp32.
__device__ void add_vector(const void* data, DType dtype, int64_t first, int64_t count, bool is_sum,
                           float (&sum)[kVector]) {
  float values[kVector];
  load_vector(data, dtype, first, count, values);
  for (int j = 0; j < kVector; ++j) sum[j] = is_sum ? sum[j] + values[j] : values[j];
}

__device__ void sum_vector(const SumShardsParams& p, int64_t row, int64_t i,
                           float (&sum)[kVector]) {
  const int64_t count = p.num_cols - i;
  for (float& value : sum) value = 0.0f;
  for (int64_t s = 0; s < p.num_shards; ++s) {
    const int64_t first = s * p.shards.strides[0] + row * p.shards.strides[1] + i;
    add_vector(p.shards.data, p.shards.dtype, first, count, s > 0, sum);
  }
  if (!p.residual) return;
  const int64_t first = row * p.residual.strides[0] + i;
  add_vector(p.residual.data, p.residual.dtype, first, count, p.num_shards > 0, sum);
}

template <class T>
__device__ void finish_row(const SumShardsParams& p, int64_t row) {
  constexpr int64_t kStep = kVector * kRmsChains;
  const int64_t own = int64_t{kVector} * threadIdx.x;
  const int64_t sum_stride = p.sum.strides[1], normed_stride = p.normed.strides[1];
  T* sums = p.sum.at<T>(row);
  float squares = 0.0f;
  for (int64_t i = own; i < p.num_cols; i += kStep) {
    float values[kVector];
    sum_vector(p, row, i, values);
    store_vector(sums + i * sum_stride, sum_stride, p.num_cols - i, values);
    for (float& value : values) {
      value = to_float(from_float<T>(value));
      squares = fmaf(value, value, squares);
    }
  }
  if (!p.norm_weight) return;
  const float scale = cta_rms_scale(squares, p.num_cols, p.eps);
  for (int64_t i = own; i < p.num_cols; i += kStep) {
    const int64_t count = p.num_cols - i;
    float values[kVector], weights[kVector];
    load_vector(sums + i * sum_stride, sum_stride, count, values);
    load_vector(p.norm_weight.data, p.norm_weight.dtype, i, count, weights);
    for (int j = 0; j < kVector; ++j) values[j] = rms_apply(values[j], scale, weights[j]);
    store_vector(p.normed.at<T>(row) + i * normed_stride, normed_stride, count, values);
  }
}

__global__ void __launch_bounds__(kRmsChains)
    sum_shards_kernel(const __grid_constant__ SumShardsParams p) {
  (void)with_dtype<float, BF16, F16>(
      p.sum.dtype, [&]<class T>(std::type_identity<T>) { finish_row<T>(p, blockIdx.x); });
}

}  // namespace

cudaError_t launch_sum_shards(const SumShardsParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  sum_shards_kernel<<<p.num_rows, kRmsChains, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
