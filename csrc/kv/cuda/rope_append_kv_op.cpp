#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "kv/cuda/launch.h"
#include "kv/rope_append_kv.h"

namespace dflash {

static void run_cuda(const RopeAppendKvParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_rope_append_kv(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("rope_append_kv", TORCH_BOX(&rope_append_kv<run_cuda>));
  m.impl("rope_append_kv.out", TORCH_BOX(&rope_append_kv_out<run_cuda>));
}

}  // namespace dflash
