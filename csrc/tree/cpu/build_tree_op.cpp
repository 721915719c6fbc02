#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "tree/build_tree.h"
#include "tree/cpu/kernels.h"
#include "tree/plan.h"

namespace dflash {

static void run_cpu(const BuildTreeParams& p, const Tensor&) {
  const int64_t num_values = p.max_nodes * (p.max_nodes + 2 * p.num_candidates);
  torch::stable::parallel_for(0, p.num_requests, tree_grain(1, num_values),
                              [&](int64_t begin, int64_t end) { build_tree_cpu(p, begin, end); });
  pack_trees_cpu(p);
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("build_tree", TORCH_BOX(&build_tree<run_cpu>));
  m.impl("build_tree.out", TORCH_BOX(&build_tree_out<run_cpu>));
}

}  // namespace dflash
