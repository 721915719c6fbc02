// Launches with dynamic shared memory.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

namespace dflash {

// More than 48 KB of a CTA must be asked for.
template <class... Params>
cudaError_t allow_shared_memory(void (*kernel)(Params...), int num_bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, num_bytes);
}

template <class... Params>
cudaError_t launch_with_memory(void (*kernel)(Params...), dim3 grid, int num_threads,
                               int smem_bytes, cudaStream_t stream,
                               const std::type_identity_t<Params>&... params) {
  const cudaError_t error = allow_shared_memory(kernel, smem_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, num_threads, smem_bytes, stream>>>(params...);
  return cudaGetLastError();
}

}  // namespace dflash
