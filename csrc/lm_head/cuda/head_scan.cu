// The pass over the head that every lm_head op makes: the product of verify_gemm, with an epilogue
// that keeps of each row what it wants to know. Nothing of the vocabulary's size leaves the CTA.
//
//   grid   row_tiles * num_groups   a CTA takes every num_groups-th tile of 256 ids for 32 rows, or
//   block  128; quantised: 256      of 128 ids for 64; tiles of rows stand next to each other and
//   smem   97 KB                    share the weight in L2
//   reads  the weight once per tile of rows; x once per tile of ids, from L2
//   writes per row and tile a node of the log-sum-exp, 16 B; per row and CTA the best candidate or
//          the 64 best
//
// L1: sums are those of verify_gemm; nodes are merged by the ids' own tree; candidates have one
// order. So who takes which ids, and in which order, changes no bit.
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "device/launch.cuh"
#include "lm_head/cuda/launch_sm90.h"
#include "lm_head/cuda/passes.h"
#include "lm_head/cuda/product.cuh"

namespace dflash {
namespace {

template <GemmShape kShape>
struct ScanStorage {
  struct Picks {  // in the place of the pipeline's stages
    float sums[kShape.plane_floats()];
    PendingKeys<kShape.threads() / kWarpSize> pending;
  };
  union {
    alignas(16) char product[kShape.smem_bytes()];
    Picks picks;
  };
  HeadStorage<kShape.weight_rows(), kShape.tokens()> rows;
};

template <class T, int kIndex>
__global__ void __launch_bounds__(kHeadShapes[kIndex].threads())
    head_scan_kernel(const __grid_constant__ HeadLaunch c) {
  constexpr GemmShape kShape = kHeadShapes[kIndex];
  extern __shared__ __align__(16) char bytes[];
  auto& shared = *reinterpret_cast<ScanStorage<kShape>*>(bytes);
  const int64_t first_token = blockIdx.x % c.plan.row_tiles * c.plan.tile_rows;
  const int64_t group = blockIdx.x / c.plan.row_tiles;
  const HeadScan scan(c, shared.rows, shared.picks.pending, shared.picks.sums, first_token);
  const bool is_store = c.op == HeadOp::kStore;
  if (is_store && !scan.find_slots()) return;
  for (int64_t tile = group; tile < c.plan.num_tiles; tile += c.plan.num_groups) {
    const int64_t first_column =
        (c.plan.first_tile + tile) * kShape.weight_rows() - c.head.options.vocab_start;
    const auto place_of = [=](int row) { return first_column + row; };
    compute_head<T, kShape>(c, shared.product, place_of, first_token, c.plan.tile_rows);
    is_store ? scan.store(tile) : scan.take(tile);
  }
  if (!is_store) scan.finish(group);
}

template <class T, int kIndex>
cudaError_t launch_shape(const HeadLaunch& c, cudaStream_t stream) {
  constexpr GemmShape kShape = kHeadShapes[kIndex];
  constexpr int kBytes = sizeof(ScanStorage<kShape>);
  static_assert(kBytes <= 99 * 1024);  // what every GPU from sm_80 on gives a CTA
  return launch_with_memory(head_scan_kernel<T, kIndex>, c.plan.row_tiles * c.plan.num_groups,
                            kShape.threads(), kBytes, stream, c);
}

}  // namespace

cudaError_t launch_head_scan(const HeadLaunch& c, cudaStream_t stream) {
  if (const auto error = launch_head_scan_sm90(c, stream)) return *error;
  if (c.head.weight.quant) return launch_shape<QuantisedHead, kQuantHeadShape>(c, stream);
  cudaError_t error = cudaErrorInvalidValue;
  (void)with_dtype<float, BF16, F16>(c.head.h.dtype, [&]<class T>(std::type_identity<T>) {
    error = c.plan.shape == 0 ? launch_shape<T, 0>(c, stream) : launch_shape<T, 1>(c, stream);
  });
  return error;
}

}  // namespace dflash
