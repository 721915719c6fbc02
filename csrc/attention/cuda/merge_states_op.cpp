#include <torch/csrc/stable/library.h>

#include "attention/cuda/launch.h"
#include "attention/merge_states.h"
#include "common/cuda.h"

namespace dflash {

static void run_cuda(const MergeStatesParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_merge_states(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("merge_states", TORCH_BOX(&merge_states<run_cuda>));
  m.impl("merge_states.out", TORCH_BOX(&merge_states_out<run_cuda>));
}

}  // namespace dflash
