#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "lm_head/cuda/launch.h"
#include "lm_head/cuda/plan.h"
#include "lm_head/lm_head_gather.h"

namespace dflash {

static void run_cuda(const LmHeadGatherParams& p, const Tensor& h) {
  const Tensor workspace =
      new_tensor(h, {plan_head(p.head, p.ids.num_cols).workspace_bytes}, ScalarType::Byte);
  const CudaScope scope(h.get_device_index());
  STD_CUDA_CHECK(launch_lm_head_gather(p, workspace.mutable_data_ptr(), scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("lm_head_gather", TORCH_BOX(&lm_head_gather<run_cuda>));
  m.impl("lm_head_gather.out", TORCH_BOX(&lm_head_gather_out<run_cuda>));
}

}  // namespace dflash
