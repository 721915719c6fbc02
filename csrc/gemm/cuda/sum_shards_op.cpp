#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "gemm/cuda/launch.h"
#include "gemm/sum_shards.h"

namespace dflash {

static void run_cuda(const SumShardsParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_sum_shards(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("sum_shards", TORCH_BOX(&sum_shards<run_cuda>));
  m.impl("sum_shards.out", TORCH_BOX(&sum_shards_out<run_cuda>));
}

}  // namespace dflash
