#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "drafter/cuda/launch.h"
#include "drafter/select_path.h"

namespace dflash {

static void run_cuda(const SelectPathParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_select_path(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("select_path", TORCH_BOX(&select_path<run_cuda>));
  m.impl("select_path.out", TORCH_BOX(&select_path_out<run_cuda>));
}

}  // namespace dflash
