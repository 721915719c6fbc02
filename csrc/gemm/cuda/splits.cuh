// The splits of k that every product has, and its sums in shared memory, whoever computes which.
//
// A product has `sums` of a warp, [frags][token_tiles][4] as mma leaves them, its place (warp_n,
// warp_k, g, t), and run(first, last, num_steps, after_step): the sums of some chunks from zero,
// with after_step(chunk) after each.
#pragma once

#include "device/ptx.cuh"
#include "gemm/cuda/plan.h"

namespace dflash {

template <int kFrags, int kTiles>
__device__ inline void clear_sums(float (&sums)[kFrags][kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kFrags * kTiles * 4; ++i) sums[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
}

// All splits: the warp's own, or each of them in turn.
template <GemmShape kShape, class Product>
__device__ inline void run_splits(Product& product, int64_t num_chunks) {
  constexpr int kTiles = kShape.token_tiles, kSums = kShape.frags * kTiles * 4;
  const auto begin = [=](int split) { return split_begin(num_chunks, split); };
  if constexpr (kShape.warps_k == kGemmSplits) {
    const int64_t longest = (num_chunks + kGemmSplits - 1) / kGemmSplits;
    product.run(begin(product.warp_k), begin(product.warp_k + 1), longest, [](int64_t) {});
  } else {
    static_assert(kShape.warps_k == 1);
    float totals[kShape.frags][kTiles][4];
    clear_sums(totals);
    int split = 0;
    product.run(0, num_chunks, num_chunks, [&](int64_t chunk) {
      while (begin(split + 1) <= chunk) ++split;  // empty ones too
      if (chunk + 1 != begin(split + 1)) return;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float& sum = product.sums[i / 4 / kTiles][i / 4 % kTiles][i % 4];
        totals[i / 4 / kTiles][i / 4 % kTiles][i % 4] += sum;
        sum = 0;
      }
    });
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      product.sums[i / 4 / kTiles][i / 4 % kTiles][i % 4] =
          totals[i / 4 / kTiles][i / 4 % kTiles][i % 4];
    }
  }
}

// The sums take the place of the pipeline's stages; they are then read by sum_at.
template <GemmShape kShape, class Product>
__device__ inline void store_sums(const Product& product, char* shared) {
  cp_async_wait<0>();
  __syncthreads();  // the stages are free
  float* plane = reinterpret_cast<float*>(shared) + product.warp_k * kShape.plane_floats();
#pragma unroll
  for (int f = 0; f < kShape.frags; ++f) {
#pragma unroll
    for (int tile = 0; tile < kShape.token_tiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = (product.warp_n * kShape.frags + f) * kTileRows + product.g + 8 * (i / 2);
        plane[(8 * tile + 2 * product.t + i % 2) * kShape.sum_stride() + row] =
            product.sums[f][tile][i];
      }
    }
  }
  __syncthreads();
}

// The sum of a token and a weight row of the CTA, both counted from the CTA's first.
template <GemmShape kShape>
__device__ inline float sum_at(const char* shared, int token, int row) {
  const float* plane = reinterpret_cast<const float*>(shared) + token * kShape.sum_stride() + row;
  float sum = plane[0];
#pragma unroll
  for (int split = 1; split < kShape.warps_k; ++split) sum += plane[split * kShape.plane_floats()];
  return sum;
}

}  // namespace dflash
