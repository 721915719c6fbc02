// CUDA launchers of the attention ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/params.h"

namespace dflash {

cudaError_t launch_merge_states(const MergeStatesParams& p, cudaStream_t stream);

}  // namespace dflash
