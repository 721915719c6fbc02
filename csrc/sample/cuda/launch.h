// CUDA launchers of the sample ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "sample/params.h"

namespace dflash {

// workspace: what plan_sample says, 16-byte aligned.
cudaError_t launch_sample_logits(const SampleLogitsParams& p, void* workspace, cudaStream_t stream);
cudaError_t launch_sample_candidates(const SampleCandidatesParams& p, cudaStream_t stream);

}  // namespace dflash
