#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "tree/convert.h"
#include "tree/cuda/launch.h"

namespace dflash {

static void run_paths_cuda(const TreeToPathsParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_tree_to_paths(p, scope.stream));
}

static void run_retrieve_cuda(const TreeFromRetrieveParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_tree_from_retrieve(p, scope.stream));
}

static void run_mask_cuda(const TreeFromMaskParams& p, int32_t device_idx) {
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_tree_from_mask(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("tree_to_paths", TORCH_BOX(&tree_to_paths<run_paths_cuda>));
  m.impl("tree_to_paths.out", TORCH_BOX(&tree_to_paths_out<run_paths_cuda>));
  m.impl("tree_from_retrieve", TORCH_BOX(&tree_from_retrieve<run_retrieve_cuda>));
  m.impl("tree_from_retrieve.out", TORCH_BOX(&tree_from_retrieve_out<run_retrieve_cuda>));
  m.impl("tree_from_mask", TORCH_BOX(&tree_from_mask<run_mask_cuda>));
  m.impl("tree_from_mask.out", TORCH_BOX(&tree_from_mask_out<run_mask_cuda>));
}

}  // namespace dflash
