#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "common/tensor.h"
#include "kv/commit_state.h"
#include "kv/cuda/launch.h"
#include "kv/plan.h"
#include "kv/release_pages.h"

namespace dflash {

static void run_release_cuda(const ReleasePagesParams& p, const Tensor& block_table) {
  const int64_t bytes = release_pages_bytes(p.num_requests, p.block_table.num_cols);
  const Tensor workspace = new_tensor(block_table, {bytes}, ScalarType::Byte);
  auto* data = static_cast<int64_t*>(workspace.mutable_data_ptr());
  const CudaScope scope(block_table.get_device_index());
  STD_CUDA_CHECK(launch_release_pages(p, data, scope.stream));
}

static void run_state_cuda(const CommitStateParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_commit_state(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("release_pages", TORCH_BOX(&release_pages<run_release_cuda>));
  m.impl("commit_state", TORCH_BOX(&commit_state<run_state_cuda>));
}

}  // namespace dflash
