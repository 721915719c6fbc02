// PTX instructions that CUDA C++ has no word for: one function = one instruction.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "device/warp.cuh"

namespace dflash {

// Address of a shared variable in the shared window, as the instructions below take it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Barrier `id`, 1 .. 15 (__syncthreads has 0), of `threads` threads.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same, and whether `value` holds for any of them.
__device__ inline bool barrier_or(int id, int threads, bool value) {
  int any;
  asm volatile(
      "{\n.reg .pred own, any;\n"
      "setp.ne.s32 own, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, own;\n"
      "selp.s32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return any != 0;
}

// Copies `bytes` (0 .. 16) to shared memory behind the thread's back and fills the rest of the 16
// with zeros. Both addresses are multiples of 16. Past the first-level cache: for data read once.
__device__ inline void cp_async_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// The same for 4 bytes, of which 0 or 4 are read; through the first-level cache.
__device__ inline void cp_async_4(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of the thread's committed groups are under way.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// For a number of groups that only the kernel knows: 0 .. 6.
__device__ inline void cp_async_wait(int pending) {
  switch (pending) {
    case 1: return cp_async_wait<1>();
    case 2: return cp_async_wait<2>();
    case 3: return cp_async_wait<3>();
    case 4: return cp_async_wait<4>();
    case 5: return cp_async_wait<5>();
    case 6: return cp_async_wait<6>();
    default: return cp_async_wait<0>();
  }
}

__device__ inline uint32_t load_shared_4(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ inline void store_shared_4(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ inline void store_shared_16(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// a * b + c of two bf16 in a word each, rounded once; denormals count.
__device__ inline uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t word;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
  return word;
}

// Exact.
__device__ inline float half_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Two floats rounded to nearest even, the first in the low half.
template <class T>
__device__ inline uint32_t round_pair(float low, float high);

template <>
__device__ inline uint32_t round_pair<BF16>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

template <>
__device__ inline uint32_t round_pair<F16>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. Of
// each a lane gets row lane / 4, columns 2 (lane % 4) and the next; transposed: of the transpose.
__device__ inline uint4 load_matrices(uint32_t address) {
  uint4 value;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ inline uint4 load_matrices_transposed(uint32_t address) {
  uint4 value;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// sums[16][8] += a[16][16] b[16][8]. With g = lane / 4 and t = lane % 4 a lane holds
//   a     rows g, g + 8, g, g + 8; columns 2t, 2t + 1 and, in the last two, 2t + 8, 2t + 9
//   b     column g; rows 2t, 2t + 1 and 2t + 8, 2t + 9
//   sums  rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
template <class T>
__device__ inline void mma_m16n8k16(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1);

template <>
__device__ inline void mma_m16n8k16<BF16>(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                          uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma_m16n8k16<F16>(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace dflash
