#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "loop/cuda/launch.h"
#include "loop/prepare_block.h"

namespace dflash {

static void run_cuda(const PrepareBlockParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_prepare_block(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("prepare_block", TORCH_BOX(&prepare_block<run_cuda>));
  m.impl("prepare_block.out", TORCH_BOX(&prepare_block_out<run_cuda>));
}

}  // namespace dflash
