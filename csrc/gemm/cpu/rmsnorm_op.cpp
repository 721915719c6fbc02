#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "gemm/cpu/kernels.h"
#include "gemm/plan.h"
#include "gemm/rmsnorm.h"

namespace dflash {

static void run_cpu(const RmsNormParams& p, int32_t) {
  const auto norm_row = gemm_kernels().norm_row;
  torch::stable::parallel_for(0, p.num_rows, row_grain(p.depth), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) norm_row(p, row);
  });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("rmsnorm", TORCH_BOX(&rmsnorm<run_cpu>));
  m.impl("rmsnorm.out", TORCH_BOX(&rmsnorm_out<run_cpu>));
}

}  // namespace dflash
