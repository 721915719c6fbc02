// The sm_90a bodies of the lm_head ops. Nothing comes back where they do not serve: another device,
// a type without wgmma, a build without them. The choice is never by shape.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "lm_head/cuda/head.h"

namespace dflash {

// One pass over the head.
std::optional<cudaError_t> launch_head_scan_sm90(const HeadLaunch& c, cudaStream_t stream);

// The keys of the given ids.
std::optional<cudaError_t> launch_head_given_sm90(const HeadLaunch& c, cudaStream_t stream);

}  // namespace dflash
