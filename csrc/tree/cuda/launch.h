// CUDA launchers of the tree ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "tree/cuda/build.h"
#include "tree/params.h"

namespace dflash {

cudaError_t launch_tree_metadata(const TreeMetadataParams& p, cudaStream_t stream);
cudaError_t launch_tree_to_paths(const TreeToPathsParams& p, cudaStream_t stream);
cudaError_t launch_tree_from_retrieve(const TreeFromRetrieveParams& p, cudaStream_t stream);
cudaError_t launch_tree_from_mask(const TreeFromMaskParams& p, cudaStream_t stream);
cudaError_t launch_build_tree(const BuildTreeParams& p, const BuildTreeWork& work,
                              cudaStream_t stream);

}  // namespace dflash
