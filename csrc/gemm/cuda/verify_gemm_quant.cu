// verify_gemm_w8 and verify_gemm_w4: verify_gemm with a quantised weight, from sm_80 up.
//
//   grid   row_tiles * blocks        a CTA per (tile of tokens, block of weight rows); tiles of
//   block  shape.threads()           tokens stand next to each other and share the weight in L2
//   smem   shape.smem_bytes()        the pipeline's stages, then the sums
//   reads  the weight once per tile of tokens; x once per CTA, from L2
//
// Reference: python/dflash_ops/reference/quantised.py

#include "common/dispatch.h"
#include "device/launch.cuh"
#include "gemm/cuda/epilogue.cuh"
#include "gemm/cuda/launch.h"
#include "gemm/cuda/quant_product.cuh"

namespace dflash {
namespace {

template <int kIndex>
__global__ void __launch_bounds__(kQuantShapes[kIndex].threads())
    verify_gemm_quant_kernel(const __grid_constant__ VerifyGemmParams p,
                             const __grid_constant__ QuantRows rows,
                             const __grid_constant__ QuantGemmPlan plan) {
  extern __shared__ __align__(16) char shared[];
  constexpr GemmShape kShape = kQuantShapes[kIndex];
  const int tile_tokens = plan.stages.tokens;
  const int64_t first_row = blockIdx.x / plan.row_tiles * kShape.weight_rows();
  const int64_t first_token = blockIdx.x % plan.row_tiles * tile_tokens;
  const QuantProductParams product{rows, p.weight, p.num_rows, plan.stages};
  const auto place_of = [=](int row) { return first_row + row; };
  QuantProduct<kShape>(product, shared, place_of, first_token).compute(shared);
  const SumTile tile{tile_tokens, kShape.weight_rows(), first_token, first_row};
  finish(p, tile, p.num_rows, threadIdx.x, kShape.threads(),
         [&](int token, int row) { return sum_at<kShape>(shared, token, row); });
}

template <int kIndex>
cudaError_t launch_shape(const VerifyGemmParams& p, const QuantRows& rows,
                         const QuantGemmPlan& plan, cudaStream_t stream) {
  constexpr int kBytes = kQuantShapes[kIndex].smem_bytes();
  return launch_with_memory(verify_gemm_quant_kernel<kIndex>, plan.num_ctas,
                            kQuantShapes[kIndex].threads(), kBytes, stream, p, rows, plan);
}

}  // namespace

cudaError_t launch_verify_gemm_quant(const VerifyGemmParams& p, const QuantRows& rows,
                                     cudaStream_t stream) {
  if (p.num_rows == 0 || p.num_outputs == 0) return cudaSuccess;  // 0 CTAs are a launch error
  const QuantGemmPlan plan =
      plan_verify_gemm_quant(p.weight, rows.num_planes, p.num_rows, rows_of_tiles(p));
  cudaError_t error = cudaErrorInvalidValue;
  (void)with_constant<0, 1>(
      plan.shape, [&](auto index) { error = launch_shape<index()>(p, rows, plan, stream); });
  return error;
}

}  // namespace dflash
