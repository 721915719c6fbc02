// The logits of the ids given to lm_head_gather, on sm_90a: their rows of the weight as rows of a
// wgmma, one token.
//
//   grid   num_rows * ceil(K / 64) clusters of 4, which share the splits of k
//   block  256
//   smem   shape.smem_bytes() = 110 KB
//   reads  the given ids' rows of the weight
//
// L1: a sum has the bits that it has in the pass.
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "device/launch_sm90.cuh"
#include "gemm/cuda/product_sm90.cuh"
#include "lm_head/cuda/launch_sm90.h"
#include "lm_head/cuda/scan.cuh"

namespace dflash {
namespace {

constexpr WgmmaShape kShape = kPickWgmmaShape;

constexpr int64_t num_tiles(const HeadLaunch& c) {
  return (c.ids.num_cols + kShape.weight_rows() - 1) / kShape.weight_rows();
}

template <class T>
__global__ void __launch_bounds__(WgmmaShape::kThreads, 2)
    head_given_sm90_kernel(const __grid_constant__ HeadLaunch c) {
  extern __shared__ __align__(1024) char bytes[];
  auto& shared = *reinterpret_cast<WgmmaStorage<kShape>*>(bytes);
  const int64_t tile = blockIdx.x / kWgmmaSplits, i = tile / num_tiles(c);
  const int64_t first = tile % num_tiles(c) * kShape.weight_rows();
  grid_wait();
  const HeadRow& row = c.rows[i];
  if (row.is_padded()) return;
  const auto place_of = [&](int j) { return given_place(c, i, first + j); };
  const ProductParams product = head_product(c, i + 1);  // one token
  compute_in_cluster<T>(product, shared, kWgmmaSplits, place_of, -1, i, false);
  const int j = static_cast<int>(threadIdx.x);
  if (cluster_rank() == 0 && j < kShape.weight_rows() && first + j < c.ids.num_cols) {
    c.given_keys[i * c.ids.num_cols + first + j] =
        given_key(c, row, given_id(c, i, first + j), sum_in_cluster(shared, kWgmmaSplits, 0, j));
  }
  cluster_sync();  // nobody's sums go while others read them
}

}  // namespace

std::optional<cudaError_t> launch_head_given_sm90(const HeadLaunch& c, cudaStream_t stream) {
  if (!is_sm90() || c.head.weight.quant) return {};
  std::optional<cudaError_t> error;
  (void)with_dtype<BF16, F16>(c.head.h.dtype, [&]<class T>(std::type_identity<T>) {
    error = launch_cluster(head_given_sm90_kernel<T>,
                           c.head.options.num_rows * num_tiles(c) * kWgmmaSplits, kWgmmaSplits,
                           WgmmaShape::kThreads, sizeof(WgmmaStorage<kShape>), stream, c);
  });
  return error;
}

}  // namespace dflash
