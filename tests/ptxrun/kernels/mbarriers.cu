// mbarriers misused, one rule a kernel.

#include <cstdint>

namespace {

__device__ uint32_t shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(count));
}
__device__ void inval(uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared(barrier)) : "memory");
}
__device__ void arrive(uint64_t* barrier, int count = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)), "r"(count)
               : "memory");
}
__device__ void expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ void complete(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)),
               "r"(bytes)
               : "memory");
}
constexpr char kTry[] = "try", kTest[] = "test";
template <const char* kHow>
__device__ bool is_over(uint64_t* barrier, int parity) {
  int done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.%3_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared(barrier)), "r"(parity), "C"(kHow)
      : "memory");
  return done != 0;
}

}  // namespace

extern "C" __global__ void rounds(const int*, int* out) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 32);
  __syncwarp();
  for (int i = 0; i < 5; ++i) {
    arrive(&barrier);
    while (!is_over<kTry>(&barrier, i % 2)) {
    }
  }
  out[threadIdx.x] = 1;
  __syncwarp();
  if (threadIdx.x == 0) inval(&barrier), init(&barrier, 1), arrive(&barrier), inval(&barrier);
}

extern "C" __global__ void no_init(const int*, int*) {
  __shared__ uint64_t barrier;
  arrive(&barrier);
}
extern "C" __global__ void after_inval(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), inval(&barrier), arrive(&barrier);
}
extern "C" __global__ void init_again(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), init(&barrier, 2);
}
extern "C" __global__ void bad_count(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1 << 20);
}
extern "C" __global__ void one_arrival_more(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 8), arrive(&barrier, 7), arrive(&barrier, 2);
}
extern "C" __global__ void no_arrivals(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 8), arrive(&barrier, 0);
}
extern "C" __global__ void most_bytes(const int*, int* out) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    init(&barrier, 1);
    expect(&barrier, (1 << 20) - 1);
    complete(&barrier, (1 << 20) - 1);
    out[0] = is_over<kTest>(&barrier, 0) ? 1 : 0;  // nobody has arrived
  }
}
extern "C" __global__ void too_many_bytes(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), expect(&barrier, (1 << 20) - 1), expect(&barrier, 1);
}
extern "C" __global__ void too_few_bytes(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), complete(&barrier, 1 << 20);
}
extern "C" __global__ void bytes_pending(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), expect(&barrier, 16);
}
extern "C" __global__ void bytes_pending_at_inval(const int*, int*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), expect(&barrier, 16), inval(&barrier);
}

// A phase that is complete, asked once by each.
extern "C" __global__ void asks_once(const int*, int* out) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1), arrive(&barrier);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    out[threadIdx.x] = is_over<kTry>(&barrier, 0) ? 1 : 0;
    out[threadIdx.x + 1] = is_over<kTest>(&barrier, 0) ? 1 : 0;
  }
}

// cp.async that arrives at an mbarrier; lanes read what others have copied, or their own.
template <bool kWaits, bool kOthers, bool kNoInc>
__device__ void copy(const int* in, int* out) {
  __shared__ __align__(16) int numbers[64];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, kNoInc ? 64 : 1);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared(&numbers[threadIdx.x])),
               "l"(in + threadIdx.x)
               : "memory");
  if (kNoInc) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared(&barrier)));
  } else {
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(shared(&barrier)));
    __syncthreads();
    if (threadIdx.x == 0) arrive(&barrier);
  }
  __syncthreads();
  while (kWaits && !is_over<kTry>(&barrier, 0)) {
  }
  out[threadIdx.x] = numbers[kOthers ? 63 - threadIdx.x : threadIdx.x];
}
extern "C" __global__ void copies(const int* in, int* out) { copy<true, true, true>(in, out); }
extern "C" __global__ void copies_counted(const int* in, int* out) {
  copy<true, true, false>(in, out);
}
extern "C" __global__ void no_wait(const int* in, int* out) { copy<false, true, true>(in, out); }
extern "C" __global__ void no_wait_counted(const int* in, int* out) {
  copy<false, true, false>(in, out);
}
extern "C" __global__ void no_wait_for_own(const int* in, int* out) {
  copy<false, false, true>(in, out);
}
