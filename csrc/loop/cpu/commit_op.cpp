#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "loop/commit.h"
#include "loop/cpu/kernels.h"
#include "loop/plan.h"

namespace dflash {

static void run_cpu(const CommitParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_requests, kRequestsPerTask,
                              [&](int64_t begin, int64_t end) { commit_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("commit", TORCH_BOX(&commit<run_cpu>));
  m.impl("commit.out", TORCH_BOX(&commit_out<run_cpu>));
}

}  // namespace dflash
