// What CTAs may tell each other through global memory, and planted faults.

#include <cstdint>

constexpr int kThreads = 64;

enum Fault { kNone, kNoRelease, kNoAcquire, kWeak, kCtaScope };

__device__ int add(int* p, int value, Fault fault) {
  int old;
  if (fault == kCtaScope) {
    asm volatile("atom.relaxed.cta.global.add.s32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(value)
                 : "memory");
  } else {
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(value)
                 : "memory");
  }
  return old;
}

// Each CTA writes a row of `parts`; the last to come adds them up, and leaves the ticket at 0.
template <Fault kFault>
__device__ void merge(int* parts, int* ticket, int* out) {
  __shared__ bool is_last;
  const int count = static_cast<int>(gridDim.x), t = static_cast<int>(threadIdx.x);
  parts[blockIdx.x * kThreads + t] = static_cast<int>(blockIdx.x) + t;
  if (kFault != kNoRelease) __threadfence();
  __syncthreads();
  if (t == 0) is_last = add(ticket, 1, kFault) == count - 1;
  __syncthreads();
  if (!is_last) return;
  if (kFault != kNoAcquire) __threadfence();
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += parts[i * kThreads + t];
  out[t] = sum;
  if (t == 0) *ticket = 0;
}
extern "C" __global__ void merge_right(int* p, int* t, int* o) { merge<kNone>(p, t, o); }
extern "C" __global__ void merge_no_release(int* p, int* t, int* o) { merge<kNoRelease>(p, t, o); }
extern "C" __global__ void merge_no_acquire(int* p, int* t, int* o) { merge<kNoAcquire>(p, t, o); }
extern "C" __global__ void merge_cta_scope(int* p, int* t, int* o) { merge<kCtaScope>(p, t, o); }

// The first CTA hands data to the others through a flag.
template <Fault kFault>
__device__ void flag(int* data, int* ready, int* out) {
  int seen = 0;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      *data = 42;
      if (kFault == kNoRelease) {
        asm volatile("st.relaxed.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
      } else {
        asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
      }
    }
    return;
  }
  while (seen == 0) {
    if (kFault == kNoAcquire) {
      asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
    } else if (kFault == kWeak) {
      asm volatile("ld.weak.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
    } else {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
    }
  }
  out[blockIdx.x * kThreads + threadIdx.x] = *data;
}
extern "C" __global__ void flag_right(int* d, int* r, int* o) { flag<kNone>(d, r, o); }
extern "C" __global__ void flag_no_release(int* d, int* r, int* o) { flag<kNoRelease>(d, r, o); }
extern "C" __global__ void flag_no_acquire(int* d, int* r, int* o) { flag<kNoAcquire>(d, r, o); }
extern "C" __global__ void flag_weak(int* d, int* r, int* o) { flag<kWeak>(d, r, o); }

// Nobody orders these.
extern "C" __global__ void same_word(int*, int*, int* out) {
  if (threadIdx.x == 0) *out = 1;
}
extern "C" __global__ void neighbours_row(int* parts, int*, int* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  parts[i] = i;
  out[i] = parts[(i + kThreads) % (static_cast<int>(gridDim.x) * kThreads)];
}
extern "C" __global__ void in_place(int* parts, int*, int* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  out[i] = parts[(i + kThreads) % (static_cast<int>(gridDim.x) * kThreads)];
  parts[i] = i;
}
extern "C" __global__ void warps_of_a_cta(int* parts, int*, int* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  parts[i] = i;
  out[i] = parts[i ^ 32];
}
extern "C" __global__ void warps_in_step(int* parts, int*, int* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  parts[i] = i;
  __syncthreads();
  out[i] = parts[i ^ 32];
}
extern "C" __global__ void atomic_and_plain(int*, int* ticket, int* out) {
  if (threadIdx.x == 0) add(ticket, 1, kNone);
  out[blockIdx.x * kThreads + threadIdx.x] = *ticket;
}

// What the grid writes is no business of the read-only cache, however well it is ordered.
extern "C" __global__ void read_only(int* parts, int*, int* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  parts[i] = i;
  __syncthreads();
  int x;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(x) : "l"(parts + i) : "memory");
  out[i] = x;
}
extern "C" __global__ void read_only_before(int* parts, int*, int* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  int x;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(x) : "l"(parts + i) : "memory");
  out[i] = x;
  parts[i] = i;
}

// Independent CTAs; all of them OR into one word.
extern "C" __global__ void apart(int*, int* status, int* out) {
  __shared__ int numbers[kThreads];
  const int t = static_cast<int>(threadIdx.x);
  numbers[t] = static_cast<int>(blockIdx.x) * t;
  __syncthreads();
  out[blockIdx.x * kThreads + t] = numbers[kThreads - 1 - t];
  if (t == 0) atomicOr(status, 1 << (blockIdx.x % 31));
}
