// CUDA launchers of the attention ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/tree_plan.h"

namespace dflash {

// workspace: plan.workspace_bytes, aligned to 256 bytes.
cudaError_t launch_tree_attention(const TreeAttentionParams& p, const TreeAttentionPlan& plan,
                                  void* workspace, cudaStream_t stream);
cudaError_t launch_merge_states(const MergeStatesParams& p, cudaStream_t stream);

}  // namespace dflash
