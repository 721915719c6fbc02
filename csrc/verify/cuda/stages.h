// The kernels of rejection verification beside the scan, in this order; see rejection.cuh.
#pragma once

#include <cuda_runtime_api.h>

namespace dflash {

struct RejectionLaunch;

// All with at least one row and one request.
cudaError_t launch_draft_sums(const RejectionLaunch& c, cudaStream_t stream);  // of a dense q
cudaError_t launch_target_rows(const RejectionLaunch& c, cudaStream_t stream);
cudaError_t launch_walk(const RejectionLaunch& c, cudaStream_t stream);
cudaError_t launch_draw(const RejectionLaunch& c, cudaStream_t stream);  // two kernels

}  // namespace dflash
