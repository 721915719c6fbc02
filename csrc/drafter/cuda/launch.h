// CUDA launchers of the drafter ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "drafter/params.h"

namespace dflash {

cudaError_t launch_block_conv(const BlockConvParams& p, cudaStream_t stream);
cudaError_t launch_select_path(const SelectPathParams& p, cudaStream_t stream);

}  // namespace dflash
