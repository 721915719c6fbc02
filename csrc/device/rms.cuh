// The root-mean-square norm of one row, in the one order that every CUDA op uses.
//
// Element i belongs to chain i / 8 % 256; a chain adds its squares by fma, in order. Chains c and
// c + 128 are added, then c + 64, and so on down to one sum. So the order depends on the length of
// the row alone: a warp that holds eight chains a lane gives the bits of a CTA of 256 threads.
#pragma once

#include <cstdint>

#include "common/rms.h"
#include "device/vector.cuh"
#include "device/warp.cuh"

namespace dflash {

inline constexpr int kRmsChains = 256;

template <class T>
static __device__ float sum_of_chain(const T* x, int64_t num_elements, int chain) {
  float sum = 0.0f;
  for (int64_t i = int64_t{kVector} * chain; i < num_elements; i += kVector * kRmsChains) {
    float values[kVector];
    load_vector(x + i, 1, num_elements - i, values);
    for (const float value : values) sum = fmaf(value, value, sum);
  }
  return sum;
}

// The sum of all chains, of which each lane holds lane, lane + 32, and so on.
static __device__ float sum_chains(float (&sums)[kRmsChains / kWarpSize]) {
  _Pragma("unroll") for (int width = kRmsChains / kWarpSize / 2; width > 0; width /= 2) {
    for (int c = 0; c < width; ++c) sums[c] += sums[c + width];
  }
  for (int width = kWarpSize / 2; width > 0; width /= 2) {
    sums[0] += __shfl_xor_sync(kFullMask, sums[0], width);
  }
  return sums[0];
}

static __device__ float scale_of(float sum, int64_t num_elements, float eps) {
  return 1.0f / sqrtf(sum / static_cast<float>(num_elements) + eps);
}

// 1 / sqrt(mean(x^2) + eps), by a whole warp.
template <class T>
static __device__ float warp_rms_scale(const T* x, int64_t num_elements, float eps) {
  float sums[kRmsChains / kWarpSize];
  _Pragma("unroll") for (int c = 0; c < kRmsChains / kWarpSize; ++c) {
    sums[c] = sum_of_chain(x, num_elements, lane_index() + c * kWarpSize);
  }
  return scale_of(sum_chains(sums), num_elements, eps);
}

// The same from the sums of the chains, by a whole CTA of kRmsChains threads that hold one each;
// once in a kernel.
static __device__ float cta_rms_scale(float sum_of_own_chain, int64_t num_elements, float eps) {
  __shared__ float chains[kRmsChains];
  chains[threadIdx.x] = sum_of_own_chain;
  __syncthreads();
  float sums[kRmsChains / kWarpSize];
  for (int c = 0; c < kRmsChains / kWarpSize; ++c) {
    sums[c] = chains[lane_index() + c * kWarpSize];
  }
  return scale_of(sum_chains(sums), num_elements, eps);
}

template <class T>
static __device__ float cta_rms_scale(const T* x, int64_t num_elements, float eps) {
  const float sum = sum_of_chain(x, num_elements, static_cast<int>(threadIdx.x));
  return cta_rms_scale(sum, num_elements, eps);
}

// Elements i .. i + 7 of a normed row, rounded to its type.
template <class T>
static __device__ void load_normed(const T* x, const ArrayView<1>& weight, int64_t i,
                                   int64_t num_elements, float scale, float (&values)[kVector]) {
  const int64_t count = num_elements - i;
  float weights[kVector];
  load_vector(x + i, 1, count, values);
  load_vector(weight.data, weight.dtype, i, count, weights);
  for (int j = 0; j < kVector; ++j) {
    values[j] = to_float(from_float<T>(rms_apply(values[j], scale, weights[j])));
  }
}

}  // namespace dflash
