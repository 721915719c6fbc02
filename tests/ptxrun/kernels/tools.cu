// Small kernels whose counters and resources are known by hand.

#include <cstdint>

struct View {
  const float* data;
  int64_t stride;
};
struct Params {
  View x;
  float* y;
  int count;
};

extern "C" __global__ void doubled(const __grid_constant__ Params p) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < p.count) p.y[i] = 2 * p.x.data[i * p.x.stride];
}

// Every CTA reads all of `shared`, and 128 floats of `own`.
extern "C" __global__ void shared_and_own(const float* shared, const float* own, float* out) {
  float sum = own[blockIdx.x * 128 + threadIdx.x];
  for (int i = 0; i < 4; ++i) sum += shared[i * 128 + threadIdx.x];
  out[blockIdx.x * 128 + threadIdx.x] = sum;
}

// Two groups of 16 bytes a lane are under way before the first wait: 2 x 512 bytes a warp.
extern "C" __global__ void two_stages(const uint4* in, uint4* out) {
  __shared__ uint4 stage[2][32];
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&stage[0][threadIdx.x]));
  for (int i = 0; i < 2; ++i) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 512 * i),
                 "l"(in + 32 * i + threadIdx.x)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int i = 2; i < 6; ++i) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    const uint4 value = stage[i % 2][threadIdx.x];
    out[32 * (i - 2) + threadIdx.x] = value;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 512 * (i % 2)),
                 "l"(in + 32 * i + threadIdx.x)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
}

// What no warp can keep in 255 registers.
extern "C" __global__ void spills(const float* in, float* out) {
  float values[400];
#pragma unroll
  for (int i = 0; i < 400; ++i) values[i] = in[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 400; ++i) out[i * 32 + threadIdx.x] = values[399 - i] * values[(7 * i) % 400];
}

// Host code that reads device memory, as no launcher may.
extern "C" int peek(const int* data) { return data[1]; }
