#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "sample/plan.h"
#include "verify/cpu/kernels.h"
#include "verify/cpu/request.h"
#include "verify/verify_tree.h"

namespace dflash {

static void run_cpu(const VerifyTreeParams& p, const Tensor&) {
  if (p.is_probe) clear_probe(p);
  torch::stable::parallel_for(0, p.sampling.num_requests, sample_grain(p.options.num_columns),
                              [&](int64_t begin, int64_t end) { verify_tree_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("verify_tree", TORCH_BOX(&verify_tree<run_cpu>));
  m.impl("verify_tree.out", TORCH_BOX(&verify_tree_out<run_cpu>));
}

}  // namespace dflash
