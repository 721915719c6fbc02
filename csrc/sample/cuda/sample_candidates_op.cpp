#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "sample/cuda/launch.h"
#include "sample/sample_candidates.h"

namespace dflash {

static void run_cuda(const SampleCandidatesParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_sample_candidates(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("sample_candidates", TORCH_BOX(&sample_candidates<run_cuda>));
  m.impl("sample_candidates.out", TORCH_BOX(&sample_candidates_out<run_cuda>));
}

}  // namespace dflash
