// The part of the CUDA runtime that launchers use, on the emulated device. Streams run at once.
// Linked into a library in place of libcudart, so that host code is compiled as it stands.

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "host/device.h"

using ptxrun::Device;
using ptxrun::FatBinary;
using ptxrun::Launch;

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                   cudaStream_t stream, dim3 cluster = dim3(1, 1, 1),
                   bool is_programmatic = false) {
  const Launch shape{{grid.x, grid.y, grid.z},
                     {block.x, block.y, block.z},
                     {cluster.x, cluster.y, cluster.z},
                     static_cast<uint32_t>(shared),
                     stream,
                     is_programmatic};
  const std::string wrong = Device::get().launch(function, shape, arguments);
  if (wrong.empty()) return cudaSuccess;
  return remember(wrong == "stopped" ? cudaErrorLaunchFailure : cudaErrorInvalidValue);
}

// Device memory by its address, host memory as it is.
void* reachable(const void* p, size_t bytes) {
  Device& device = Device::get();
  device.finish_launches();
  const auto address = reinterpret_cast<uint64_t>(p);
  if (device.memory().find(address, bytes) != nullptr) return device.data(address, bytes);
  return const_cast<void*>(p);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  return reinterpret_cast<void**>(Device::get().register_binary(binary));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Device::get().register_function(host, reinterpret_cast<FatBinary*>(binary), name);
}

void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, size_t, int, int) {
  Device::get().register_variable(host, reinterpret_cast<FatBinary*>(binary), name);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration& c = configurations.back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  dim3 cluster(1, 1, 1);
  bool is_programmatic = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension) {
      cluster = dim3(a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z);
    }
    if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      is_programmatic = a.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                config->stream, cluster, is_programmatic);
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "error of the emulated device; see ptxrun's reports";
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  const int most = Device::get().arch >= 90 ? 227 << 10 : 163 << 10;
  if (value > most) return remember(cudaErrorInvalidValue);
  Device::get().dynamic_limit(function) = static_cast<uint32_t>(value);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const ptxrun::Kernel& kernel = Device::get().kernel(function);
  *attributes = {};
  attributes->sharedSizeBytes = kernel.shared_bytes;
  attributes->localSizeBytes = kernel.local_bytes;
  attributes->maxThreadsPerBlock = static_cast<int>(kernel.text->max_threads);
  attributes->numRegs = 128;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const bool is_hopper = Device::get().arch >= 90;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = Device::get().arch / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = Device::get().arch % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = is_hopper ? 132 : 108; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (is_hopper ? 227 : 163) << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (is_hopper ? 228 : 164) << 10; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = (is_hopper ? 50 : 40) << 20; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default: return remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = reinterpret_cast<void*>(Device::get().allocate(bytes, "cudaMalloc"));
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (p != nullptr) Device::get().release(reinterpret_cast<uint64_t>(p));
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  if (bytes == 0) return cudaSuccess;
  std::memset(reachable(p, bytes), value, bytes);
  Device::get().mark_written(reinterpret_cast<uint64_t>(p), bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return cudaMemsetAsync(p, value, bytes, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (bytes == 0) return cudaSuccess;
  std::memmove(reachable(to, bytes), reachable(from, bytes), bytes);
  Device::get().mark_written(reinterpret_cast<uint64_t>(to), bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaGetSymbolAddress(void** p, const void* symbol) {
  const ptxrun::Allocation* a = Device::get().variable(symbol);
  if (a == nullptr) return remember(cudaErrorInvalidSymbol);
  *p = reinterpret_cast<void*>(a->base);
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  void* p = nullptr;
  const cudaError_t error = cudaGetSymbolAddress(&p, symbol);
  if (error != cudaSuccess) return error;
  return cudaMemcpyAsync(static_cast<uint8_t*>(p) + offset, from, bytes, kind, stream);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

}  // extern "C"
