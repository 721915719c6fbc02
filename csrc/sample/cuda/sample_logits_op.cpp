#include <torch/csrc/stable/library.h>

#include "common/cuda.h"
#include "sample/cuda/launch.h"
#include "sample/cuda/plan.h"
#include "sample/sample_logits.h"

namespace dflash {

static void run_cuda(const SampleLogitsParams& p, const Tensor& logits) {
  const LogitOptions& o = p.options;
  const int64_t bytes = plan_sample(o.num_rows, o.vocab_start, o.num_columns).workspace_bytes;
  const Tensor workspace = new_tensor(logits, {bytes}, ScalarType::Byte);
  const CudaScope scope(logits.get_device_index());
  STD_CUDA_CHECK(launch_sample_logits(p, workspace.mutable_data_ptr(), scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("sample_logits", TORCH_BOX(&sample_logits<run_cuda>));
  m.impl("sample_logits.out", TORCH_BOX(&sample_logits_out<run_cuda>));
}

}  // namespace dflash
