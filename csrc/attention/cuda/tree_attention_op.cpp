#include <torch/csrc/stable/library.h>

#include "attention/cuda/launch.h"
#include "attention/tree_attention.h"
#include "common/cuda.h"

namespace dflash {

static void run_cuda(const TreeAttentionParams& p, const Tensor& q) {
  const CudaScope scope(q.get_device_index());
  const TreeAttentionPlan plan = plan_tree_attention_cuda(p);
  const Tensor workspace = new_tensor(q, {plan.workspace_bytes}, ScalarType::Byte);
  STD_CUDA_CHECK(launch_tree_attention(p, plan, workspace.mutable_data_ptr(), scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("tree_attention", TORCH_BOX(&tree_attention<run_cuda>));
  m.impl("tree_attention.out", TORCH_BOX(&tree_attention_out<run_cuda>));
}

}  // namespace dflash
