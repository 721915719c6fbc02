// The sm_90a body of verify_gemm. Nothing comes back where it does not serve: another device, a
// type without wgmma, a build without it. The choice is never by shape.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "gemm/params.h"

namespace dflash {

std::optional<cudaError_t> launch_verify_gemm_sm90(const VerifyGemmParams& p,
                                                   int64_t num_weight_rows, cudaStream_t stream);

}  // namespace dflash
