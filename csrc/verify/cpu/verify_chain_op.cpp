#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "sample/plan.h"
#include "verify/cpu/kernels.h"
#include "verify/verify_chain.h"

namespace dflash {

// Rows that no chain reaches.
static void clear_probe(const VerifyChainParams& p) {
  for (int64_t i = 0; i < p.options.num_rows; ++i) {
    *p.accept_probs.at<float>(i) = 0.0f;
    *p.coins.at<float>(i) = 0.0f;
    std::fill_n(p.counters + i * 8, 8, -1);
    for (int64_t id = 0; id < p.options.vocab_size; ++id) {
      p.weights.at<float>(i)[id * p.weights.strides[1]] = 0.0f;
    }
  }
}

static void run_cpu(const VerifyChainParams& p, int32_t) {
  if (p.is_probe) clear_probe(p);
  torch::stable::parallel_for(0, p.sampling.num_requests, sample_grain(p.options.num_columns),
                              [&](int64_t begin, int64_t end) { verify_chain_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("verify_chain", TORCH_BOX(&verify_chain<run_cpu>));
  m.impl("verify_chain.out", TORCH_BOX(&verify_chain_out<run_cpu>));
}

}  // namespace dflash
