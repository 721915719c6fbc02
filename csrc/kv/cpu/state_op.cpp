#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "kv/commit_state.h"
#include "kv/cpu/kernels.h"
#include "kv/plan.h"
#include "kv/release_pages.h"

namespace dflash {

static void run_release_cpu(const ReleasePagesParams& p, const Tensor&) { release_pages_cpu(p); }

static void run_state_cpu(const CommitStateParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_layers * p.num_requests,
                              elements_grain(p.layers[0].row_bytes),
                              [&](int64_t begin, int64_t end) { commit_state_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("release_pages", TORCH_BOX(&release_pages<run_release_cpu>));
  m.impl("commit_state", TORCH_BOX(&commit_state<run_state_cpu>));
}

}  // namespace dflash
