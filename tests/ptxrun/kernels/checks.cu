// Right kernels and planted faults: each names what must be said about it.

#include <cstdint>

constexpr int kThreads = 64;

// Reverses a block of kThreads numbers through shared memory.
template <bool kHasBarrier>
__device__ void reverse(const int* in, int* out) {
  __shared__ int numbers[kThreads];
  numbers[threadIdx.x] = in[threadIdx.x];
  if (kHasBarrier) __syncthreads();
  out[threadIdx.x] = numbers[kThreads - 1 - threadIdx.x];
}
extern "C" __global__ void right(const int* in, int* out) { reverse<true>(in, out); }
extern "C" __global__ void no_barrier(const int* in, int* out) { reverse<false>(in, out); }

// Two rounds through one buffer: the second write may overtake the first read.
extern "C" __global__ void no_second_barrier(const int* in, int* out) {
  __shared__ int numbers[kThreads];
  for (int round = 0; round < 2; ++round) {
    numbers[threadIdx.x] = in[threadIdx.x] + round;
    __syncthreads();
    out[threadIdx.x] += numbers[kThreads - 1 - threadIdx.x];
  }
}

extern "C" __global__ void no_warp_barrier(const int* in, int* out) {
  __shared__ int numbers[32];
  numbers[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = numbers[31 - threadIdx.x];
}

extern "C" __global__ void past_the_end(const int* in, int* out) {
  out[threadIdx.x + 1] = in[threadIdx.x];
}
extern "C" __global__ void before_the_start(const int* in, int* out) {
  out[threadIdx.x] = in[static_cast<int64_t>(threadIdx.x) - 1];
}
extern "C" __global__ void misaligned(const int* in, int* out) {
  out[threadIdx.x] = *reinterpret_cast<const int*>(reinterpret_cast<const char*>(in) + 2);
}

extern "C" __global__ void unwritten_shared(const int*, int* out) {
  __shared__ int numbers[kThreads];
  if (threadIdx.x == 0) numbers[0] = 1;
  __syncthreads();
  out[threadIdx.x] = numbers[threadIdx.x];
}

template <bool kWaits>
__device__ void copy(const int* in, int* out) {
  __shared__ __align__(16) int numbers[kThreads];
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(&numbers[threadIdx.x]));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in + threadIdx.x)
               : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (kWaits) asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  out[threadIdx.x] = numbers[kThreads - 1 - threadIdx.x];
}
extern "C" __global__ void copy_waited(const int* in, int* out) { copy<true>(in, out); }
extern "C" __global__ void copy_not_waited(const int* in, int* out) { copy<false>(in, out); }

extern "C" __global__ void divergent_barrier(const int* in, int* out) {
  if (threadIdx.x % 2 == 0) {
    asm volatile("bar.sync 0;" ::: "memory");
  } else {
    asm volatile("bar.sync 0;" ::: "memory");
    out[threadIdx.x] = in[threadIdx.x];
  }
}

extern "C" __global__ void leaves_before_a_barrier(const int*, int* out) {
  if (threadIdx.x % 2 == 0) asm volatile("bar.sync 0;" ::: "memory");
  out[threadIdx.x] = 1;
}

// What one lane does before the barrier stands behind it.
extern "C" __global__ void late_lane(const int* in, int* out) {
  asm volatile(
      "{\n"
      ".reg .pred is_late;\n"
      ".reg .u32 x;\n"
      "setp.eq.u32 is_late, %0, 5;\n"
      "mov.u32 x, 1;\n"
      "@is_late bra LATE;\n"
      "MEET: bar.sync 0;\n"
      "st.global.u32 [%1], x;\n"
      "bra.uni END;\n"
      "LATE: ld.global.u32 x, [%2];\n"
      "bra.uni MEET;\n"
      "END:\n"
      "}\n" ::"r"(threadIdx.x),
      "l"(out + threadIdx.x), "l"(in + threadIdx.x)
      : "memory");
}

extern "C" __global__ void one_warp_short(const int*, int* out) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
  out[threadIdx.x] = 1;
}

extern "C" __global__ void wrong_member_mask(const int* in, int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffffff, in[threadIdx.x], 3);
}

extern "C" __global__ void waits_for_a_later_cta(const int*, int* out) {
  volatile int* flag = out;
  if (blockIdx.x == 0) {
    while (*flag == 0) {
    }
  } else {
    *flag = 1;
  }
}

// Branches of every kind: data-dependent loops, early returns, a switch.
extern "C" __global__ void collatz(const int* in, int* out) {
  int x = in[threadIdx.x], steps = 0;
  while (x != 1) {
    x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    if (++steps == 40 && threadIdx.x % 3 == 0) {
      out[threadIdx.x] = -1;
      return;
    }
  }
  switch (threadIdx.x % 5) {
    case 0: steps += 1000; break;
    case 1: steps *= 2; break;
    case 2: steps = -steps; break;
    case 3: steps ^= 5; break;
    default: break;
  }
  out[threadIdx.x] = steps;
}

extern "C" __global__ void gives_up(const int* in, int*) {
  if (in[threadIdx.x] >= 0) __trap();
}

// Patterns of access whose traffic is known.
extern "C" __global__ void traffic(const float* in, float* out, int stride) {
  __shared__ float tile[32 * 33];
  tile[threadIdx.x * 33] = in[threadIdx.x];               // coalesced; free of conflicts
  tile[threadIdx.x * 32 + 1] = in[threadIdx.x * stride];  // strided; all in one bank
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x * 33];
}
