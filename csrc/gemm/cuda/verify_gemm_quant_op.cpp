#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "gemm/cuda/launch.h"
#include "gemm/verify_gemm_quant.h"

namespace dflash {

// Rows of bf16 are read where they are. Others, and a fused norm, are a launch of their own into a
// workspace: every CTA reads all of x.
static void run_cuda(const VerifyGemmParams& p, const Tensor& x) {
  const CudaScope scope(x.get_device_index());
  QuantRows rows{static_cast<const BF16*>(p.x.data), p.x.strides[0], 0, 1, nullptr, 0};
  std::optional<Tensor> workspace;
  if (p.norm_weight || p.weight.has_int8_rows || p.x.dtype != DType::kBF16) {
    const QuantRowsPlan plan = plan_quant_rows(p.weight, p.num_rows);
    workspace = new_tensor(x, {plan.workspace_bytes}, ScalarType::Byte);
    void* memory = workspace->mutable_data_ptr();
    STD_CUDA_CHECK(launch_quant_rows({p.x, p.norm_weight, p.eps, p.num_rows, p.weight.depth,
                                      QuantLayout(p.weight).chunk_depth(), plan, memory},
                                     scope.stream));
    rows = rows_in(memory, plan);
  }
  STD_CUDA_CHECK(launch_verify_gemm_quant(p, rows, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("verify_gemm_w8", TORCH_BOX((&verify_gemm_quant<8, run_cuda>)));
  m.impl("verify_gemm_w8.out", TORCH_BOX((&verify_gemm_quant_out<8, run_cuda>)));
  m.impl("verify_gemm_w4", TORCH_BOX((&verify_gemm_quant<4, run_cuda>)));
  m.impl("verify_gemm_w4.out", TORCH_BOX((&verify_gemm_quant_out<4, run_cuda>)));
}

}  // namespace dflash
