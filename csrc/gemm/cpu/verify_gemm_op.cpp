#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "gemm/cpu_product.h"
#include "gemm/verify_gemm_quant.h"

namespace dflash {

static void run_cpu(const VerifyGemmParams& p, const Tensor&) {
  const PackedX x(p.x, p.norm_weight, p.eps, p.num_rows, p.weight.row_form());
  for_each_tile(p.weight, x, p.num_rows,
                [&](int64_t block, int64_t first_row, int64_t num_rows, float* sums) {
                  gemm_kernels().finish(p, block, first_row, num_rows, sums);
                });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("verify_gemm", TORCH_BOX(&verify_gemm<run_cpu>));
  m.impl("verify_gemm.out", TORCH_BOX(&verify_gemm_out<run_cpu>));
  m.impl("verify_gemm_w8", TORCH_BOX((&verify_gemm_quant<8, run_cpu>)));
  m.impl("verify_gemm_w8.out", TORCH_BOX((&verify_gemm_quant_out<8, run_cpu>)));
  m.impl("verify_gemm_w4", TORCH_BOX((&verify_gemm_quant<4, run_cpu>)));
  m.impl("verify_gemm_w4.out", TORCH_BOX((&verify_gemm_quant_out<4, run_cpu>)));
}

}  // namespace dflash
