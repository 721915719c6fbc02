// CUDA launchers of the tree ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "tree/params.h"

namespace dflash {

cudaError_t launch_tree_metadata(const TreeMetadataParams& p, cudaStream_t stream);

}  // namespace dflash
