// verify_gemm on sm_90a, bf16 and fp16: wgmma with the weight as its 64 rows, tokens as n.
//
//   grid   row_tiles * blocks clusters  one per (tile of tokens, 64 weight rows); tiles of tokens
//   block  256                          stand next to each other and share the weight in L2
//   smem   shape.smem_bytes()           the ring of stages, a plane of sums, barriers
//   reads  the weight once per tile of at most 64 tokens; x once per CTA, from L2
//
// L1: a sum is that of kWgmmaSplits splits of k, each one chain of wgmma from zero, added in
// ascending order. Clusters of four CTAs take a split each, or a CTA all of them; n is the only
// difference between instantiations.
//
// Reference: python/dflash_ops/reference/gemm.py

#include "device/launch_sm90.cuh"
#include "gemm/cuda/epilogue.cuh"
#include "gemm/cuda/launch_sm90.h"
#include "gemm/cuda/product_sm90.cuh"

namespace dflash {
namespace {

template <class T, int kIndex>
__global__ void __launch_bounds__(WgmmaShape::kThreads, kWgmmaShapes[kIndex].ctas_per_sm)
    verify_gemm_sm90_kernel(const __grid_constant__ VerifyGemmParams p,
                            const __grid_constant__ WgmmaPlan plan) {
  constexpr WgmmaShape kShape = kWgmmaShapes[kIndex];
  extern __shared__ __align__(1024) char bytes[];
  auto& shared = *reinterpret_cast<WgmmaStorage<kShape>*>(bytes);
  const int64_t tile = blockIdx.x / plan.cluster;
  const int64_t first_row = tile / plan.row_tiles * kShape.weight_rows();
  const int64_t first_token = tile % plan.row_tiles * kShape.tokens;
  int64_t num_tokens = p.num_rows;
  if (p.row_count != nullptr) {
    grid_wait();
    num_tokens = *p.row_count;
    if (first_token >= num_tokens) return;
  }
  // A norm's own launch began after all that came before it was over: the weight is there.
  compute_in_cluster<T>(
      {p.x, p.weight, num_tokens}, shared, plan.cluster, [=](int row) { return first_row + row; },
      first_row, first_token, static_cast<bool>(p.norm_weight));
  const SumTile sum_tile{kShape.tokens, kShape.weight_rows(), first_token, first_row};
  finish(p, sum_tile, num_tokens, blockIdx.x % plan.cluster * WgmmaShape::kThreads + threadIdx.x,
         plan.cluster * WgmmaShape::kThreads,
         [&](int token, int row) { return sum_in_cluster(shared, plan.cluster, token, row); });
  cluster_sync();  // nobody's sums go while others read them
}

template <class T, int kIndex>
cudaError_t launch_shape(const VerifyGemmParams& p, const WgmmaPlan& plan, cudaStream_t stream) {
  constexpr int kBytes = sizeof(WgmmaStorage<kWgmmaShapes[kIndex]>);
  return launch_cluster(verify_gemm_sm90_kernel<T, kIndex>, plan.num_ctas, plan.cluster,
                        WgmmaShape::kThreads, kBytes, stream, p, plan);
}

}  // namespace

std::optional<cudaError_t> launch_verify_gemm_sm90(const VerifyGemmParams& p,
                                                   int64_t num_weight_rows, cudaStream_t stream) {
  if (!is_sm90() || p.weight.quant) return {};
  std::optional<cudaError_t> error;
  const WgmmaPlan plan = plan_verify_gemm_sm90(p.num_rows, num_weight_rows);
  (void)with_dtype<BF16, F16>(p.x.dtype, [&]<class T>(std::type_identity<T>) {
    using Shapes = std::make_integer_sequence<int, kNumWgmmaShapes>;
    (void)with_constant(plan.shape, Shapes(),
                        [&](auto index) { error = launch_shape<T, index()>(p, plan, stream); });
  });
  return error;
}

}  // namespace dflash
