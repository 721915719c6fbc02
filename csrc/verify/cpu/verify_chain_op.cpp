#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "sample/plan.h"
#include "verify/cpu/kernels.h"
#include "verify/cpu/request.h"
#include "verify/verify_chain.h"

namespace dflash {

static void run_cpu(const VerifyChainParams& p, const Tensor&) {
  if (p.is_probe) clear_probe(p);
  torch::stable::parallel_for(0, p.sampling.num_requests, sample_grain(p.options.num_columns),
                              [&](int64_t begin, int64_t end) { verify_chain_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("verify_chain", TORCH_BOX(&verify_chain<run_cpu>));
  m.impl("verify_chain.out", TORCH_BOX(&verify_chain_out<run_cpu>));
}

}  // namespace dflash
