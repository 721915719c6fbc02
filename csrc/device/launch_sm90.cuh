// Launches of the bodies for sm_90a: in clusters, and programmatically, before the grid that comes
// first is over; kernels wait for it themselves.
#pragma once

#include <cstdint>

#include "device/launch.cuh"

namespace dflash {

// Whether the current device runs them. The runtime has the answer at hand.
inline bool is_sm90() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

template <class... Params>
cudaError_t launch_cluster(void (*kernel)(Params...), int64_t num_ctas, int cluster,
                           int num_threads, int smem_bytes, cudaStream_t stream,
                           const std::type_identity_t<Params>&... params) {
  const cudaError_t error = allow_shared_memory(kernel, smem_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  (void)cudaLaunchKernelEx(&config, kernel, params...);
  return cudaGetLastError();  // which the next launch would take for its own
}

}  // namespace dflash
