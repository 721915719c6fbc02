#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "drafter/block_conv.h"
#include "drafter/cuda/launch.h"

namespace dflash {

static void run_cuda(const BlockConvParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_block_conv(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("block_conv", TORCH_BOX(&block_conv<run_cuda>));
  m.impl("block_conv.out", TORCH_BOX(&block_conv_out<run_cuda>));
}

}  // namespace dflash
