#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "sample/cpu/kernels.h"
#include "sample/plan.h"
#include "sample/sample_logits.h"

namespace dflash {

static void run_cpu(const SampleLogitsParams& p, const Tensor&) {
  torch::stable::parallel_for(
      0, p.options.num_rows, sample_grain(p.options.num_columns),
      [&](int64_t begin, int64_t end) { sample_logits_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("sample_logits", TORCH_BOX(&sample_logits<run_cpu>));
  m.impl("sample_logits.out", TORCH_BOX(&sample_logits_out<run_cpu>));
}

}  // namespace dflash
