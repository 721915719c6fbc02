#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "kv/cpu/kernels.h"
#include "kv/plan.h"
#include "kv/rope_append_kv.h"

namespace dflash {

static void run_cpu(const RopeAppendKvParams& p, int32_t) {
  const int64_t num_heads = p.num_q_heads + 2 * p.num_kv_heads;
  const int64_t elements = p.num_rows * num_heads * p.k_cache.head_dim;
  torch::stable::parallel_for(
      0, kNumRowLanes, elements_grain(elements / kNumRowLanes),
      [&](int64_t begin, int64_t end) { rope_append_kv_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("rope_append_kv", TORCH_BOX(&rope_append_kv<run_cpu>));
  m.impl("rope_append_kv.out", TORCH_BOX(&rope_append_kv_out<run_cpu>));
}

}  // namespace dflash
