#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "tree/cuda/launch.h"
#include "tree/tree_metadata.h"

namespace dflash {

static void run_cuda(const TreeMetadataParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_tree_metadata(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("tree_metadata", TORCH_BOX(&tree_metadata<run_cuda>));
  m.impl("tree_metadata.out", TORCH_BOX(&tree_metadata_out<run_cuda>));
}

}  // namespace dflash
