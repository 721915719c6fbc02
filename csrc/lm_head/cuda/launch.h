// CUDA launchers of the lm_head ops: torch-free; they enqueue on `stream` and do not synchronise.
// workspace: what plan_head says, 16-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include "lm_head/params.h"

namespace dflash {

cudaError_t launch_lm_head_topk(const LmHeadTopkParams& p, void* workspace, cudaStream_t stream);
cudaError_t launch_lm_head_sample(const LmHeadSampleParams& p, void* workspace,
                                  cudaStream_t stream);
cudaError_t launch_lm_head_gather(const LmHeadGatherParams& p, void* workspace,
                                  cudaStream_t stream);
cudaError_t launch_lm_head_verify(const LmHeadVerifyParams& p, void* workspace,
                                  cudaStream_t stream);
cudaError_t launch_merge_shards(const MergeShardsParams& p, cudaStream_t stream);  // no workspace

}  // namespace dflash
