// The second kernel of sample_logits.
#pragma once

#include <cuda_runtime_api.h>

namespace dflash {

struct SampleLaunch;

cudaError_t launch_sample_finish(const SampleLaunch& c, cudaStream_t stream);

}  // namespace dflash
