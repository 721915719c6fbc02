#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "tree/convert.h"
#include "tree/cpu/kernels.h"
#include "tree/plan.h"

namespace dflash {

static void run_paths_cpu(const TreeToPathsParams& p, int32_t) {
  torch::stable::parallel_for(
      0, p.num_requests,
      tree_grain(p.num_requests, p.num_rows + p.num_requests * p.max_paths * p.path_length),
      [&](int64_t begin, int64_t end) { tree_to_paths_cpu(p, begin, end); });
}

static void run_retrieve_cpu(const TreeFromRetrieveParams& p, int32_t) {
  torch::stable::parallel_for(
      0, p.num_requests, tree_grain(1, 3 * p.num_nodes),
      [&](int64_t begin, int64_t end) { tree_from_retrieve_cpu(p, begin, end); });
}

static void run_mask_cpu(const TreeFromMaskParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_rows, tree_grain(1, 1), [&](int64_t begin, int64_t end) {
    tree_from_mask_fill_cpu(p, begin, end);
  });
  torch::stable::parallel_for(
      0, p.num_requests, tree_grain(p.num_requests, p.num_rows * p.mask.num_cols),
      [&](int64_t begin, int64_t end) { tree_from_mask_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("tree_to_paths", TORCH_BOX(&tree_to_paths<run_paths_cpu>));
  m.impl("tree_to_paths.out", TORCH_BOX(&tree_to_paths_out<run_paths_cpu>));
  m.impl("tree_from_retrieve", TORCH_BOX(&tree_from_retrieve<run_retrieve_cpu>));
  m.impl("tree_from_retrieve.out", TORCH_BOX(&tree_from_retrieve_out<run_retrieve_cpu>));
  m.impl("tree_from_mask", TORCH_BOX(&tree_from_mask<run_mask_cpu>));
  m.impl("tree_from_mask.out", TORCH_BOX(&tree_from_mask_out<run_mask_cpu>));
}

}  // namespace dflash
