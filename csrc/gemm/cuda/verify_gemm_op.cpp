#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "gemm/cuda/launch.h"
#include "gemm/verify_gemm.h"

namespace dflash {

// A fused norm is a launch of its own into a workspace: every CTA reads all of x, so to norm it in
// each would cost more than the workspace's traffic, and the bits are those of rmsnorm as they are.
static void run_cuda(VerifyGemmParams p, const Tensor& x) {
  const CudaScope scope(x.get_device_index());
  std::optional<Tensor> normed;
  if (p.norm_weight) {
    constexpr int64_t kPiece = 8;  // rows start at multiples of 16 bytes
    const int64_t depth = p.weight.depth, pitch = (depth + kPiece - 1) / kPiece * kPiece;
    normed = new_tensor(x, {p.num_rows, pitch}, x.scalar_type());
    const ArrayOut<2> out{normed->mutable_data_ptr(), p.x.dtype, {pitch, 1}};
    STD_CUDA_CHECK(
        launch_rmsnorm({p.x, p.norm_weight, p.eps, out, p.num_rows, depth}, scope.stream));
    p.x = {out.data, out.dtype, {pitch, 1}};
  }
  STD_CUDA_CHECK(launch_verify_gemm(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("verify_gemm", TORCH_BOX(&verify_gemm<run_cuda>));
  m.impl("verify_gemm.out", TORCH_BOX(&verify_gemm_out<run_cuda>));
}

}  // namespace dflash
