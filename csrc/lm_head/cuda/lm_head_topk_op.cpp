#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "lm_head/cuda/launch.h"
#include "lm_head/cuda/plan.h"
#include "lm_head/lm_head_topk.h"

namespace dflash {

static void run_cuda(const LmHeadTopkParams& p, const Tensor& h) {
  const Tensor workspace = new_tensor(h, {plan_head(p.head).workspace_bytes}, ScalarType::Byte);
  const CudaScope scope(h.get_device_index());
  STD_CUDA_CHECK(launch_lm_head_topk(p, workspace.mutable_data_ptr(), scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("lm_head_topk", TORCH_BOX(&lm_head_topk<run_cuda>));
  m.impl("lm_head_topk.out", TORCH_BOX(&lm_head_topk_out<run_cuda>));
}

}  // namespace dflash
