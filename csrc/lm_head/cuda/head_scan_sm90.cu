// The pass over the head on sm_90a: wgmma with 64 ids as its rows, tokens as n, and the epilogue of
// head_scan.cu by warps of its own, so that memory does not wait for it.
//
//   grid   row_tiles * num_groups   a CTA takes every num_groups-th tile of 256 ids for 32 rows, or
//   block  384                      of 128 ids for 64: four warps each for the epilogue, for the
//   smem   202 or 224 KB            product, and for what it reads
//   reads  the weight once per tile of rows; x once per tile of ids, from L2
//   writes as head_scan.cu
//
// L1: sums are those of verify_gemm on this device; the rest is as in head_scan.cu.
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "device/launch_sm90.cuh"
#include "gemm/cuda/product_sm90.cuh"
#include "lm_head/cuda/launch_sm90.h"
#include "lm_head/cuda/scan.cuh"

namespace dflash {
namespace {

constexpr int kGroup = WgmmaShape::kGroup;
static_assert(kGroup == kHeadThreads);

template <WgmmaShape kShape>
struct ScanStorage {
  WgmmaStorage<kShape> product;
  HeadStorage<kShape.weight_rows(), kShape.tokens> rows;
  PendingKeys<kGroup / kWarpSize> pending;
  uint64_t sums_full, sums_empty;  // mbarriers of the plane of sums
  bool is_idle;
};

template <class T, int kIndex>
__global__ void __launch_bounds__(3 * kGroup)
    head_scan_sm90_kernel(const __grid_constant__ HeadLaunch c) {
  constexpr WgmmaShape kShape = kHeadWgmmaShapes[kIndex];
  extern __shared__ __align__(1024) char bytes[];
  auto& shared = *reinterpret_cast<ScanStorage<kShape>*>(bytes);
  const uint32_t sums_full = shared_address(&shared.sums_full);
  const uint32_t sums_empty = shared_address(&shared.sums_empty);
  if (threadIdx.x == 0) {
    mbarrier_init(sums_full, kGroup);
    mbarrier_init(sums_empty, kGroup);
  }
  init_ring(shared.product);
  const int64_t first_token = blockIdx.x % c.plan.row_tiles * kShape.tokens;
  const int64_t group = blockIdx.x / c.plan.row_tiles;
  const bool is_store = c.op == HeadOp::kStore;
  const int role = threadIdx.x / kGroup;
  if (role == 0) {
    grid_wait();
    const HeadScan scan(c, shared.rows, shared.pending, shared.product.sums, first_token);
    if (is_store) {
      const bool is_idle = !scan.find_slots();
      if (threadIdx.x == 0) shared.is_idle = is_idle;
      __syncthreads();
      if (is_idle) return;
    }
    uint32_t parity = 0;
    for (int64_t tile = group; tile < c.plan.num_tiles; tile += c.plan.num_groups, parity ^= 1) {
      mbarrier_wait(sums_full, parity);
      is_store ? scan.store(tile) : scan.take(tile);
      mbarrier_arrive(sums_empty);
    }
    if (!is_store) scan.finish(group);
    return;
  }
  if (is_store) {
    __syncthreads();
    if (shared.is_idle) return;
  }
  const ProductParams product = head_product(c, c.head.options.num_rows);
  if (role == 1) {
    WgmmaConsumer<T, kShape> consumer(WeightLayout(c.head.weight), shared.product);
    uint32_t parity = 1;
    for (int64_t tile = group; tile < c.plan.num_tiles; tile += c.plan.num_groups, parity ^= 1) {
      consumer.run(0, kWgmmaSplits, [&] { mbarrier_wait(sums_empty, parity); });
      mbarrier_arrive(sums_full);
    }
    return;
  }
  WgmmaProducer<T, kShape> producer(product, shared.product);
  const int64_t steps = num_steps(producer.layout);
  int64_t ahead = 0;
  for (int64_t tile = group; tile < c.plan.num_tiles; tile += c.plan.num_groups, ahead = 0) {
    const int64_t first_column =
        (c.plan.first_tile + tile) * kShape.weight_rows() - c.head.options.vocab_start;
    producer.take([=](int row) { return first_column + row; }, first_column, first_token);
    if (tile == group) {  // the op's first launch began after all before it: the weight is there
      if (!is_store) ahead = producer.load_ahead(0, steps);
      grid_wait();
    }
    producer.run(0, steps, ahead);
  }
}

template <class T, int kIndex>
cudaError_t launch_shape(const HeadLaunch& c, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ScanStorage<kHeadWgmmaShapes[kIndex]>);
  static_assert(kBytes <= 227 * 1024);
  return launch_cluster(head_scan_sm90_kernel<T, kIndex>, c.plan.row_tiles * c.plan.num_groups, 1,
                        3 * kGroup, kBytes, stream, c);
}

}  // namespace

std::optional<cudaError_t> launch_head_scan_sm90(const HeadLaunch& c, cudaStream_t stream) {
  if (!is_sm90() || c.head.weight.quant) return {};
  std::optional<cudaError_t> error;
  (void)with_dtype<BF16, F16>(c.head.h.dtype, [&]<class T>(std::type_identity<T>) {
    error = c.plan.shape == 0 ? launch_shape<T, 0>(c, stream) : launch_shape<T, 1>(c, stream);
  });
  return error;
}

}  // namespace dflash
