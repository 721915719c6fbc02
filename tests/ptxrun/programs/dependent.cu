// Programmatic dependent launch: the second kernel may start before the first is over.

#include <cuda_runtime.h>

enum Fault { kNone, kNoWait, kLateWait, kOverwrites, kPlainLaunch };

__global__ void first(const float* in, float* between) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  asm volatile("griddepcontrol.launch_dependents;");
  between[i] = 2 * in[i];
}

template <Fault kFault>
__global__ void second(const float* in, float* between, float* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float before = in[i];  // nobody writes it
  if (kFault == kOverwrites) between[i] = 0;
  float x = kFault == kLateWait ? between[i] : 0;
  if (kFault != kNoWait && kFault != kPlainLaunch) {
    if (threadIdx.x < 32) asm volatile("griddepcontrol.wait;" ::: "memory");
    __syncthreads();
  }
  if (kFault != kLateWait) x = between[i];
  out[i] = before + x;
}

template <Fault kFault>
int run(const float* in, float* between, float* out, int count) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = count / 128;
  config.blockDim = 128;
  config.attrs = &attribute;
  config.numAttrs = kFault == kPlainLaunch ? 0 : 1;
  first<<<count / 128, 128>>>(in, between);
  return cudaLaunchKernelEx(&config, second<kFault>, in, between, out);
}

extern "C" int run_pair(int fault, const float* in, float* between, float* out, int count) {
  switch (fault) {
    case kNone: return run<kNone>(in, between, out, count);
    case kNoWait: return run<kNoWait>(in, between, out, count);
    case kLateWait: return run<kLateWait>(in, between, out, count);
    case kOverwrites: return run<kOverwrites>(in, between, out, count);
    case kPlainLaunch: return run<kPlainLaunch>(in, between, out, count);
    default: return -1;
  }
}
