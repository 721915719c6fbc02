// The sm_90a body of tree_attention's pass over the keys. Nothing comes back where it does not
// serve: another device, fp32, a cache of another type than q, a build without it. Never by shape.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

namespace dflash {

struct AttendParams;

std::optional<cudaError_t> launch_attend_sm90(const AttendParams& a, cudaStream_t stream);

}  // namespace dflash
