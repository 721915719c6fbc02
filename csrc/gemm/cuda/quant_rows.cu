// Rows of x for the product with a quantised weight, normed if asked for: parts of bf16, or codes
// of int8 with their scales.
//
//   grid   num_rows                  one row per CTA
//   block  kRmsChains = 256
//   smem   1 KB
//   reads  x once, with a norm once more from the cache
//
// Reference: round_to_int8 of python/dflash_ops/reference/quantised.py

#include "device/rms.cuh"
#include "gemm/cuda/launch.h"
#include "gemm/cuda/quant_rows.cuh"

namespace dflash {
namespace {

constexpr int kLanesPerScale = kRowScaleDepth / kVector;

// Values become codes; returns their scale: NaN if one of them is not finite. Four lanes hold the
// numbers that share it.
__device__ float round_vector(float (&values)[kVector]) {
  float largest = 0.0f, not_finite = 0.0f;
  for (const float value : values) {
    largest = fmaxf(largest, fabsf(value));
    not_finite += value * 0.0f;
  }
  for (int width = kLanesPerScale / 2; width > 0; width /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, width));
    not_finite += __shfl_xor_sync(kFullMask, not_finite, width);
  }
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for (float& value : values) value = rintf(value * inverse);  // ties to even
  return largest / 127.0f + not_finite;
}

template <class T>
__device__ void finish_row(const QuantRowsParams& p, int64_t row) {
  const int64_t depth = p.depth,
                all = p.chunk_depth * ((depth + p.chunk_depth - 1) / p.chunk_depth);
  const T* x = p.x.at<T>(row);
  const float scale = p.norm_weight ? cta_rms_scale(x, depth, p.eps) : 0.0f;
  BF16* to = static_cast<BF16*>(p.workspace) + row * p.plan.pitch;
  char* all_scales = static_cast<char*>(p.workspace) + p.plan.scales_offset;
  float* scales = reinterpret_cast<float*>(all_scales) + row * p.plan.scale_stride;
  // Whole warps go on together.
  for (int64_t i = int64_t{kVector} * threadIdx.x; i - kVector * lane_index() < all;
       i += kVector * kRmsChains) {
    float values[kVector];
    if (p.norm_weight) {
      load_normed(x, p.norm_weight, i, depth, scale, values);
    } else {
      load_vector(x + i, 1, depth - i, values);
    }
    if (p.plan.scale_stride > 0) {
      const float row_scale = round_vector(values);
      const int64_t chunk = i / p.chunk_depth, in_chunk = i % p.chunk_depth / kRowScaleDepth;
      const bool is_first = lane_index() % kLanesPerScale == 0;
      if (is_first && i < all) {  // codes of 8 bits leave two places, which are copied too
        const int64_t step = p.chunk_depth / kRowScaleDepth;
        for (int64_t j = in_chunk; j < kChunkRowScales; j += step) {
          scales[chunk * kChunkRowScales + j] = row_scale;
        }
      }
    }
    if (i < depth) split_vector(p.plan, to + i, values);
  }
}

__global__ void __launch_bounds__(kRmsChains)
    quant_rows_kernel(const __grid_constant__ QuantRowsParams p) {
  (void)with_dtype<float, BF16, F16>(
      p.x.dtype, [&]<class T>(std::type_identity<T>) { finish_row<T>(p, blockIdx.x); });
}

}  // namespace

cudaError_t launch_quant_rows(const QuantRowsParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  quant_rows_kernel<<<p.num_rows, kRmsChains, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
