#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "gemm/cuda/launch.h"
#include "gemm/rmsnorm.h"

namespace dflash {

static void run_cuda(const RmsNormParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_rmsnorm(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("rmsnorm", TORCH_BOX(&rmsnorm<run_cuda>));
  m.impl("rmsnorm.out", TORCH_BOX(&rmsnorm_out<run_cuda>));
}

}  // namespace dflash
