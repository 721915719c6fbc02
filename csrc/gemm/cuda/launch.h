// CUDA launchers of the gemm ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "gemm/cuda/quant_plan.h"
#include "gemm/params.h"

namespace dflash {

cudaError_t launch_pack_weight(const PackWeightParams& p, cudaStream_t stream);
cudaError_t launch_unpack(const UnpackParams& p, cudaStream_t stream);
cudaError_t launch_pack_quant(const PackQuantParams& p, cudaStream_t stream);
cudaError_t launch_unpack_quant(const UnpackParams& p, cudaStream_t stream);
cudaError_t launch_rmsnorm(const RmsNormParams& p, cudaStream_t stream);
cudaError_t launch_sum_shards(const SumShardsParams& p, cudaStream_t stream);

// norm_weight: x is normed already, by the launch right before this one.
cudaError_t launch_verify_gemm(const VerifyGemmParams& p, cudaStream_t stream);

// The rows of x for a quantised weight, and the product with it.
cudaError_t launch_quant_rows(const QuantRowsParams& p, cudaStream_t stream);
cudaError_t launch_verify_gemm_quant(const VerifyGemmParams& p, const QuantRows& rows,
                                     cudaStream_t stream);

}  // namespace dflash
