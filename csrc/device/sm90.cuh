// PTX instructions of sm_90a: mbarriers, bulk copies, clusters, wgmma. One function = one
// instruction, but for waits, which are loops.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dtype.h"

namespace dflash {

// ---- mbarriers: a phase is over when `arrivals` threads have arrived and all bytes have landed.
// Addresses are of the shared window, as shared_address gives them.
__device__ inline void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Initialised barriers are there for the async proxy and for other CTAs of the cluster.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for so many bytes more.
__device__ inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives once all cp.async of this thread have landed.
__device__ inline void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase with this parity: 0 for the first, then 1, 0, ..
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred over;\n"
      "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@!over bra AGAIN;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- copies and proxies
// Global to shared memory; addresses and bytes are multiples of 16. The bytes count at `barrier`.
__device__ inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// What ordinary accesses, seen by this thread, wrote to shared memory is there for wgmma and bulk
// copies.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- grids and clusters
// What the grids before this one wrote is there. Without a programmatic launch it is anyway.
__device__ inline void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ inline int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// By every thread of the cluster: all see what any wrote to shared memory before.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Where the CTA of that rank has what is at `address` here.
__device__ inline uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ inline float load_cluster(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// ---- wgmma: four warps, the first a multiple of four, work as one
// Registers and shared memory as this thread has left them are there for the next wgmma.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A matrix of 16-bit elements, k along its rows of 64 bytes, rows one under the other; units of 16
// bytes of a row are swizzled: unit u of row r stands at u ^ (r / 2 % 4). 8 rows start at a
// multiple of 512 bytes; a step of 16 along k is 32 bytes more in `address`.
__device__ inline uint64_t matrix_of_64_byte_rows(uint32_t address) {
  constexpr uint64_t kSwizzle64 = 2, kEightRows = 512;
  return kSwizzle64 << 62 | kEightRows >> 4 << 32 | 1 << 16 | (address & 0x3ffff) >> 4;
}

// Of the operands, in the name of the instruction.
template <class T>
struct WgmmaType;
template <>
struct WgmmaType<BF16> {
  static constexpr char kName[] = "bf16";
};
template <>
struct WgmmaType<F16> {
  static constexpr char kName[] = "f16";
};

// sums[64][n] += a[64][16] b[16][n], for matrices in shared memory as above; n is 8 for each block
// of sums. Of rows 16 w .. of warp w and 8 columns a block a lane holds what mma_m16n8k16 gives it.
template <class T>
__device__ inline void wgmma(float (&sums)[1][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.%6.%6 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3])
      : "l"(a), "l"(b), "C"(WgmmaType<T>::kName));
}

template <class T>
__device__ inline void wgmma(float (&sums)[4][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.%18.%18 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
        "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
        "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
        "+f"(sums[3][3])
      : "l"(a), "l"(b), "C"(WgmmaType<T>::kName));
}

// kAdds: false for the first of a chain, which takes the sums for zeros.
template <class T, bool kAdds = true>
__device__ inline void wgmma(float (&sums)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.%34.%34 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
      "%28, %29, %30, %31}, %32, %33, %35, 1, 1, 0, 0;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
        "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
        "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
        "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]),
        "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]),
        "+f"(sums[7][2]), "+f"(sums[7][3])
      : "l"(a), "l"(b), "C"(WgmmaType<T>::kName), "n"(kAdds));
}

template <class T>
__device__ inline void wgmma(float (&sums)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.%66.%66 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, "
      "%63}, %64, %65, 1, 1, 1, 0, 0;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
        "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
        "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
        "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]),
        "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]),
        "+f"(sums[7][2]), "+f"(sums[7][3]), "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]),
        "+f"(sums[8][3]), "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]),
        "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]),
        "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]),
        "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]),
        "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]),
        "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]),
        "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
      : "l"(a), "l"(b), "C"(WgmmaType<T>::kName));
}

// The compiler neither reads nor writes these sums across this line: wgmma changes them meanwhile.
template <int kTiles>
__device__ inline void keep_sums(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
}

}  // namespace dflash
