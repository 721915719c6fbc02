// block_conv: DFlash 2's grouped dynamic depthwise convolution, within each block.
//
//   grid   max(num_rows, num_blocks), conv_channel_ctas    a row, in parts of 8 * kConvBlock
//   channels block  kConvBlock                                      8 channels per thread smem none
//   moves  x, base and delta once per tap, all but the first time from the cache; out once
//
// fp32 from the loads on: taps ascending, (base + delta) rounded, then the product, then the sum.
//
// Reference: python/dflash_ops/reference/drafter.py

#include "device/vector.cuh"
#include "drafter/cuda/launch.h"
#include "drafter/plan.h"
#include "drafter/rounded.h"

namespace dflash {
namespace {

// The first row of the row's block; -1: it is in none.
__device__ int64_t first_row_of_block(const BlockConvParams& p, int64_t row) {
  const int64_t b =
      p.cu_rows ? request_of_row(p.cu_rows, p.num_blocks, row, p.num_rows) : row / p.block_size;
  if (b < 0 || b >= p.num_blocks) return -1;
  return p.cu_rows ? p.cu_rows[b] : b * p.block_size;
}

__device__ void load_row(const ArrayView<2>& view, int64_t row, int64_t channel, int64_t count,
                         float (&values)[kVector]) {
  load_vector(view.data, view.dtype, row * view.strides[0] + channel, count, values);
}

// The delta of each channel's group.
__device__ void load_delta(const BlockConvParams& p, int64_t row, int64_t tap, int64_t channel,
                           int64_t count, float (&values)[kVector]) {
  const auto group_size = static_cast<uint32_t>(p.num_channels / p.num_groups);
  (void)with_dtype<float, BF16, F16>(p.delta.dtype, [&]<class T>(std::type_identity<T>) {
    const T* delta = p.delta.at<T>(row) + tap * p.delta.strides[1];
    for (int j = 0; j < kVector; ++j) {
      const uint32_t group = static_cast<uint32_t>(channel + (j < count ? j : 0)) / group_size;
      values[j] = to_float(delta[group * p.delta.strides[2]]);
    }
  });
}

__global__ void __launch_bounds__(kConvBlock)
    block_conv_kernel(const __grid_constant__ BlockConvParams p) {
  const int64_t row = blockIdx.x;
  const bool is_first_thread = blockIdx.y == 0 && threadIdx.x == 0;
  if (is_first_thread && p.cu_rows && row < p.num_blocks &&
      !row_range(p.cu_rows, row, p.num_rows).in_range) {
    p.status.add(row, kOutOfRange);
  }
  const int64_t channel = kVector * (int64_t{blockIdx.y} * kConvBlock + threadIdx.x);
  const int64_t count = p.num_channels - channel;
  if (row >= p.num_rows || count <= 0) return;

  float sum[kVector] = {};
  const int64_t first_row = first_row_of_block(p, row);
  if (first_row >= 0 && p.num_groups > 0) {
    for (int64_t tap = 0; tap < p.num_taps && row - tap >= first_row; ++tap) {
      float x[kVector], base[kVector], delta[kVector];
      load_row(p.x, row - tap, channel, count, x);
      load_row(p.base, tap, channel, count, base);
      load_delta(p, row, tap, channel, count, delta);
      for (int j = 0; j < kVector; ++j) sum[j] += (base[j] + delta[j]) * x[j];
    }
  }
  if (first_row >= 0 && p.residual) {
    float residual[kVector];
    load_row(p.residual, row, channel, count, residual);
    for (int j = 0; j < kVector; ++j) sum[j] += residual[j];
  }
  (void)with_dtype<float, BF16, F16>(p.out.dtype, [&]<class T>(std::type_identity<T>) {
    for (int j = 0; j < kVector; ++j) sum[j] = to_float(rounded<T>(sum[j]));
    store_vector(p.out.at<T>(row) + channel * p.out.strides[1], p.out.strides[1], count, sum);
  });
}

}  // namespace

cudaError_t launch_block_conv(const BlockConvParams& p, cudaStream_t stream) {
  const int64_t num_rows = std::max(p.num_rows, p.num_blocks);
  if (num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const int64_t parts = std::max<int64_t>(1, conv_channel_ctas(p.num_channels));
  const dim3 grid(static_cast<uint32_t>(num_rows), static_cast<uint32_t>(parts));
  block_conv_kernel<<<grid, kConvBlock, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
