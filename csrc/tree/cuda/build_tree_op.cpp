#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "tree/build_tree.h"
#include "tree/cuda/launch.h"

namespace dflash {

static void run_cuda(const BuildTreeParams& p, const Tensor& anchors) {
  const int64_t bytes = build_tree_bytes(p.num_requests, p.max_nodes);
  const Tensor workspace = new_tensor(anchors, {bytes}, ScalarType::Byte);
  auto* nodes = static_cast<TreeNode*>(workspace.mutable_data_ptr());
  const int64_t num_nodes = p.num_requests * p.max_nodes;
  const BuildTreeWork work{nodes, reinterpret_cast<int64_t*>(nodes + num_nodes)};
  const CudaScope scope(anchors.get_device_index());
  STD_CUDA_CHECK(launch_build_tree(p, work, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("build_tree", TORCH_BOX(&build_tree<run_cuda>));
  m.impl("build_tree.out", TORCH_BOX(&build_tree_out<run_cuda>));
}

}  // namespace dflash
