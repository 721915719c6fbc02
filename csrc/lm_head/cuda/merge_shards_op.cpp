#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "lm_head/cuda/launch.h"
#include "lm_head/merge_shards.h"

namespace dflash {

static void run_cuda(const MergeShardsParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_merge_shards(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("merge_shards", TORCH_BOX(&merge_shards<run_cuda>));
  m.impl("merge_shards.out", TORCH_BOX(&merge_shards_out<run_cuda>));
}

}  // namespace dflash
