#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "loop/cpu/kernels.h"
#include "loop/plan.h"
#include "loop/prepare_block.h"

namespace dflash {

static void run_cpu(const PrepareBlockParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_requests, kRequestsPerTask, [&](int64_t begin, int64_t end) {
    prepare_block_cpu(p, begin, end);
  });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("prepare_block", TORCH_BOX(&prepare_block<run_cpu>));
  m.impl("prepare_block.out", TORCH_BOX(&prepare_block_out<run_cpu>));
}

}  // namespace dflash
