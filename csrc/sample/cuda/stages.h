// The two kernels of sample_logits. Rejection verification has the first one, too.
#pragma once

#include <cuda_runtime_api.h>

namespace dflash {

struct SampleLaunch;

cudaError_t launch_sample_scan(const SampleLaunch& c, cudaStream_t stream);  // num_rows > 0
cudaError_t launch_sample_finish(const SampleLaunch& c, cudaStream_t stream);

}  // namespace dflash
