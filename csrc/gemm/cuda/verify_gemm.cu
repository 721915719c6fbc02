// verify_gemm: act(x W^T + bias + addend) + residual for a few tokens, from sm_80 up. Of the types
// with a body of their own for sm_90a see verify_gemm_sm90.cu.
//
//   grid   row_tiles * blocks        a CTA per (tile of tokens, block of weight rows); tiles of
//   block  shape.threads()           tokens stand next to each other and share the weight in L2
//   smem   shape.smem_bytes()        the pipeline's stages, then the sums
//   reads  the weight once per tile of at most 64 tokens; x once per CTA, from L2
//
// L1: a sum is that of kGemmSplits splits of k, each one chain of mma (fp32: of fmaf) from zero,
// added in ascending order. Shapes differ in who computes what and never in that.
//
// Reference: python/dflash_ops/reference/gemm.py

#include "common/dispatch.h"
#include "device/launch.cuh"
#include "gemm/cuda/epilogue.cuh"
#include "gemm/cuda/launch.h"
#include "gemm/cuda/launch_sm90.h"
#include "gemm/cuda/product.cuh"

namespace dflash {
namespace {

template <class T, int kIndex>
__global__ void __launch_bounds__(kGemmShapes[kIndex].threads(), 1)  // registers instead of spills
    verify_gemm_kernel(const __grid_constant__ VerifyGemmParams p,
                       const __grid_constant__ int64_t row_tiles) {
  extern __shared__ __align__(16) char shared[];
  constexpr GemmShape kShape = kGemmShapes[kIndex];
  const int64_t first_row = blockIdx.x / row_tiles * kShape.weight_rows();
  const int64_t first_token = blockIdx.x % row_tiles * kShape.tokens();
  const int64_t num_tokens = p.row_count == nullptr ? p.num_rows : *p.row_count;
  if (first_token >= num_tokens) return;
  const ProductParams product{p.x, p.weight, num_tokens};
  const auto place_of = [=](int row) { return first_row + row; };
  Product<T, kShape>(product, shared, place_of, first_token).compute(shared);
  const SumTile tile{kShape.tokens(), kShape.weight_rows(), first_token, first_row};
  finish(p, tile, num_tokens, threadIdx.x, kShape.threads(),
         [&](int token, int row) { return sum_at<kShape>(shared, token, row); });
}

template <class T, int kIndex>
cudaError_t launch_shape(const VerifyGemmParams& p, const GemmPlan& plan, cudaStream_t stream) {
  constexpr GemmShape kShape = kGemmShapes[kIndex];
  return launch_with_memory(verify_gemm_kernel<T, kIndex>, plan.num_ctas, kShape.threads(),
                            kShape.smem_bytes(), stream, p, plan.row_tiles);
}

}  // namespace

cudaError_t launch_verify_gemm(const VerifyGemmParams& p, cudaStream_t stream) {
  if (p.num_rows == 0 || p.num_outputs == 0) return cudaSuccess;  // 0 CTAs are a launch error
  const int64_t weight_rows = rows_of_tiles(p);
  if (const auto error = launch_verify_gemm_sm90(p, weight_rows, stream)) return *error;
  const GemmPlan plan = plan_verify_gemm_cuda(p.num_rows, weight_rows, p.x.dtype == DType::kF32);
  cudaError_t error = cudaErrorInvalidValue;
  (void)with_dtype<float, BF16, F16>(p.x.dtype, [&]<class T>(std::type_identity<T>) {
    using All = std::make_integer_sequence<int, kNumGemmShapes>;
    using Shapes = std::conditional_t<std::is_same_v<T, float>, Fp32GemmShapes, All>;
    (void)with_constant(plan.shape, Shapes(),
                        [&](auto index) { error = launch_shape<T, index()>(p, plan, stream); });
  });
  return error;
}

}  // namespace dflash
