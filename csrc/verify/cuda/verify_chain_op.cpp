#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "verify/cuda/launch.h"
#include "verify/cuda/plan.h"
#include "verify/verify_chain.h"

namespace dflash {

static void run_cuda(const VerifyChainParams& p, const Tensor& tokens) {
  const int64_t bytes = plan_rejection(p).workspace_bytes;
  const Tensor workspace = new_tensor(tokens, {bytes}, ScalarType::Byte);
  const CudaScope scope(tokens.get_device_index());
  STD_CUDA_CHECK(launch_verify_chain(p, workspace.mutable_data_ptr(), scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("verify_chain", TORCH_BOX(&verify_chain<run_cuda>));
  m.impl("verify_chain.out", TORCH_BOX(&verify_chain_out<run_cuda>));
}

}  // namespace dflash
