#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "attention/cpu/kernels.h"
#include "attention/merge_states.h"

namespace dflash {

static void run_cpu(const MergeStatesParams& p, int32_t) {
  constexpr int64_t kElementsPerTask = 1 << 15;  // to wake a thread costs more
  const int64_t grain = 1 + kElementsPerTask / (p.num_heads * p.v_dim + 1);
  const BlockOps& ops = block_ops();
  torch::stable::parallel_for(0, p.num_rows, grain,
                              [&](int64_t begin, int64_t end) { ops.merge_states(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("merge_states", TORCH_BOX(&merge_states<run_cpu>));
  m.impl("merge_states.out", TORCH_BOX(&merge_states_out<run_cpu>));
}

}  // namespace dflash
