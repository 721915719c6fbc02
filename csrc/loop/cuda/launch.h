// CUDA launchers of the loop ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "loop/params.h"

namespace dflash {

cudaError_t launch_prepare_block(const PrepareBlockParams& p, cudaStream_t stream);
cudaError_t launch_commit(const CommitParams& p, cudaStream_t stream);

}  // namespace dflash
