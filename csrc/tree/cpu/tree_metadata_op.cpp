#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "tree/cpu/kernels.h"
#include "tree/plan.h"
#include "tree/tree_metadata.h"

namespace dflash {

static void run_cpu(const TreeMetadataParams& p, int32_t) {
  torch::stable::parallel_for(
      0, p.num_rows, tree_metadata_grain(p.num_rows, p.num_rows, p.mask.num_words),
      [&](int64_t begin, int64_t end) { tree_metadata_fill_cpu(p, begin, end); });
  torch::stable::parallel_for(
      0, p.num_requests, tree_metadata_grain(p.num_requests, p.num_rows, p.mask.num_words),
      [&](int64_t begin, int64_t end) { tree_metadata_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("tree_metadata", TORCH_BOX(&tree_metadata<run_cpu>));
  m.impl("tree_metadata.out", TORCH_BOX(&tree_metadata_out<run_cpu>));
}

}  // namespace dflash
