#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "lm_head/cpu/merge_shards.h"
#include "lm_head/merge_shards.h"
#include "sample/plan.h"

namespace dflash {

static void run_cpu(const MergeShardsParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_rows, sample_grain(p.num_shards * p.count),
                              [&](int64_t begin, int64_t end) { merge_shards_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("merge_shards", TORCH_BOX(&merge_shards<run_cpu>));
  m.impl("merge_shards.out", TORCH_BOX(&merge_shards_out<run_cpu>));
}

}  // namespace dflash
