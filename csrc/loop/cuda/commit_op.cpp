#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "loop/commit.h"
#include "loop/cuda/launch.h"

namespace dflash {

static void run_cuda(const CommitParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_commit(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("commit", TORCH_BOX(&commit<run_cuda>));
  m.impl("commit.out", TORCH_BOX(&commit_out<run_cuda>));
}

}  // namespace dflash
