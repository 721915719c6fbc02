#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "sample/cpu/kernels.h"
#include "sample/sample_candidates.h"

namespace dflash {

static void run_cpu(const SampleCandidatesParams& p, int32_t) {
  torch::stable::parallel_for(
      0, p.num_rows, sample_grain(p.num_candidates),
      [&](int64_t begin, int64_t end) { sample_candidates_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("sample_candidates", TORCH_BOX(&sample_candidates<run_cpu>));
  m.impl("sample_candidates.out", TORCH_BOX(&sample_candidates_out<run_cpu>));
}

}  // namespace dflash
