#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "kv/context_kv.h"
#include "kv/context_layer.h"
#include "kv/cuda/launch.h"
#include "kv/plan.h"

namespace dflash {

static void run_cuda(const ContextKvParams& p, const Tensor& features) {
  int64_t widest = 0;
  for_each_stack(
      p, [&](const ContextStack& stack) { widest = std::max(widest, stack.weight.num_rows); });
  const int64_t element_bytes = float_bytes(p.features.dtype);
  const ContextKvPlan plan =
      plan_context_kv(p.num_rows, p.num_groups, p.fc.depth, p.fc.num_rows, widest, element_bytes);
  const Tensor workspace = new_tensor(features, {plan.workspace_bytes}, ScalarType::Byte);
  const CudaScope scope(features.get_device_index());
  STD_CUDA_CHECK(launch_context_kv(p, plan, workspace.mutable_data_ptr(), scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("context_kv", TORCH_BOX(&context_kv<run_cuda>));
}

}  // namespace dflash
