// CUDA launchers of the gemm ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "gemm/params.h"

namespace dflash {

cudaError_t launch_rmsnorm(const RmsNormParams& p, cudaStream_t stream);

}  // namespace dflash
