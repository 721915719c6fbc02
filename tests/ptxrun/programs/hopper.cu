// sm_90a by hand: mbarriers, bulk and tensor copies, a product by wgmma. Each kernel leaves out or
// keeps one step by a template argument, so that a test sees that the step is needed.

#include <cuda.h>

#include <cstdint>
#include <utility>

namespace {

__device__ uint32_t shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(count));
}
__device__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(barrier)) : "memory");
}
__device__ void arrive_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ void wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(
          shared(barrier)),
      "r"(parity)
      : "memory");
}
__device__ void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void bulk_load(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared(to)),
      "l"(from), "r"(bytes), "r"(shared(barrier))
      : "memory");
}
__device__ void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

enum Fault {
  kNone,
  kNoExpect,
  kNoWait,
  kNoFence,
  kNoStoreWait,
  kNoEmptyWait,
  kShortExpect,
  kNoInitFence,
  kNoInitBarrier,
  kWrongParity,
  kLoadsInVain,
  kLeavesStore
};

// Adds one to `count` floats, 256 at a time, through two stages filled by a producer warp.
template <Fault kFault>
__device__ void pipeline(const float* in, float* out, int count) {
  __shared__ __align__(128) float stage[2][256];
  __shared__ __align__(128) float result[256];
  __shared__ __align__(8) uint64_t full[2], empty[2];
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    for (int s = 0; s < 2; ++s) init(&full[s], 1), init(&empty[s], 128);
    if (kFault != kNoInitFence) fence_init();
  }
  if (kFault != kNoInitBarrier) __syncthreads();
  if (t >= 128) {  // the producer
    const int loads = count / 256 + (kFault == kLoadsInVain ? 1 : 0);
    for (int i = 0; t == 128 && i < loads; ++i) {
      const int s = i % 2, round = i / 2;
      if (kFault != kNoEmptyWait && round > 0) wait(&empty[s], (round - 1) % 2);
      if (kFault == kNoExpect) {
        arrive(&full[s]);
      } else {
        arrive_expect(&full[s], kFault == kShortExpect ? 1008 : 1024);
      }
      bulk_load(stage[s], in + 256 * i % count, 1024, &full[s]);
    }
    return;
  }
  for (int i = 0; i < count / 256; ++i) {
    const int s = i % 2, round = i / 2;
    if (kFault != kNoWait) wait(&full[s], (round + (kFault == kWrongParity ? 1 : 0)) % 2);
    const float a = stage[s][t], b = stage[s][t + 128];
    arrive(&empty[s]);
    if (t == 0 && kFault != kNoStoreWait) bulk_wait();
    asm volatile("bar.sync 1, 128;" ::: "memory");
    result[t] = a + 1;
    result[t + 128] = b + 1;
    if (kFault != kNoFence) fence_proxy();
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (t == 0) bulk_store(out + 256 * i, result, 1024);
  }
  if (t == 0 && kFault != kLeavesStore) bulk_wait();
}

// A tile of a tensor as it lies in shared memory, copied out by ordinary loads.
__device__ void dump_tile(const CUtensorMap* map, uint32_t* out, int words, int x, int y) {
  extern __shared__ __align__(1024) uint32_t tile[];
  __shared__ __align__(8) uint64_t barrier;
  if (threadIdx.x == 0) {
    init(&barrier, 1);
    fence_init();
    arrive_expect(&barrier, words * 4);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], [%4];" ::"r"(shared(tile)),
        "l"(map), "r"(x), "r"(y), "r"(shared(&barrier))
        : "memory");
  }
  __syncthreads();
  wait(&barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < words; i += 128) out[i] = tile[i];
}

}  // namespace

__global__ void dump(const __grid_constant__ CUtensorMap map, uint32_t* out, int words, int x,
                     int y) {
  dump_tile(&map, out, words, x, y);
}

template <Fault kFault>
__global__ void pipe(const float* in, float* out, int count) {
  pipeline<kFault>(in, out, count);
}

// Every CTA of a cluster adds its rank to its right neighbour's number.
template <int kSize>
__global__ void __cluster_dims__(kSize, 1, 1) neighbours(int* out) {
  __shared__ int number;
  uint32_t rank, remote;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) number = 100;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared(&number)), "r"((rank + 1) % kSize));
  if (threadIdx.x == 0) {
    asm volatile("red.shared::cluster.add.u32 [%0], %1;" ::"r"(remote), "r"(rank) : "memory");
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) out[blockIdx.x] = number;
}

template <int... kFaults>
void launch_pipe(int fault, const float* in, float* out, int count,
                 std::integer_sequence<int, kFaults...>) {
  ((fault == kFaults ? pipe<static_cast<Fault>(kFaults)><<<1, 160>>>(in, out, count) : void()),
   ...);
}

extern "C" int run_pipe(int fault, const float* in, float* out, int count) {
  launch_pipe(fault, in, out, count, std::make_integer_sequence<int, kLeavesStore + 1>());
  return cudaGetLastError();
}

extern "C" int run_dump(const uint16_t* in, uint32_t* out, int rows, int cols, int box_rows,
                        int box_cols, int swizzle, int x, int y) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, 0, &found);
  CUtensorMap map;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(2 * cols)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  using Encode = decltype(&cuTensorMapEncodeTiled);
  const CUresult result = reinterpret_cast<Encode>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<uint16_t*>(in), extents, strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(swizzle),
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return 1000 + result;
  const int words = box_rows * box_cols / 2;
  dump<<<1, 128, words * 4>>>(map, out, words, x, y);
  return cudaGetLastError();
}

extern "C" int run_neighbours(int* out, int size) {
  switch (size) {
    case 2: neighbours<2><<<16, 32>>>(out); break;
    case 4: neighbours<4><<<16, 32>>>(out); break;
    case 8: neighbours<8><<<16, 32>>>(out); break;
    default: neighbours<16><<<16, 32>>>(out);
  }
  return cudaGetLastError();
}
