// CUDA launchers of the kv ops: torch-free; they enqueue on `stream` and do not synchronise.
#pragma once

#include <cuda_runtime_api.h>

#include "kv/context_params.h"
#include "kv/plan.h"

namespace dflash {

// Calls of rope_append_kv that have rows, dtype of rows and status in common: one launch.
struct RopeAppendLayers {
  RopeAppendKvParams layers[kMaxStackedLayers];
};
static_assert(sizeof(RopeAppendLayers) <= 16 * 1024);  // of the 32 KB that a launch's argument has

cudaError_t launch_rope_append_kv(const RopeAppendKvParams& p, cudaStream_t stream);
// Of keys and values alone.
cudaError_t launch_rope_append_layers(const RopeAppendLayers& p, int64_t num_layers,
                                      cudaStream_t stream);
// workspace: what plan says, 16-byte aligned.
cudaError_t launch_context_kv(const ContextKvParams& p, const ContextKvPlan& plan, void* workspace,
                              cudaStream_t stream);
cudaError_t launch_compact_kv(const CompactKvParams& p, cudaStream_t stream);
cudaError_t launch_commit_state(const CommitStateParams& p, cudaStream_t stream);
// workspace: release_pages_bytes() of device memory, 8-byte aligned.
cudaError_t launch_release_pages(const ReleasePagesParams& p, int64_t* workspace,
                                 cudaStream_t stream);

}  // namespace dflash
