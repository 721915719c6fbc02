#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "tree/cpu/kernels.h"
#include "tree/plan.h"
#include "tree/tree_metadata.h"

namespace dflash {

static void run_cpu(const TreeMetadataParams& p, int32_t) {
  const int64_t num_values = p.num_rows * (p.mask.num_words + 4);
  torch::stable::parallel_for(
      0, p.num_rows, tree_grain(p.num_rows, num_values),
      [&](int64_t begin, int64_t end) { tree_metadata_fill_cpu(p, begin, end); });
  torch::stable::parallel_for(
      0, p.num_requests, tree_grain(p.num_requests, num_values),
      [&](int64_t begin, int64_t end) { tree_metadata_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("tree_metadata", TORCH_BOX(&tree_metadata<run_cpu>));
  m.impl("tree_metadata.out", TORCH_BOX(&tree_metadata_out<run_cpu>));
}

}  // namespace dflash
