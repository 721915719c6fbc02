#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "drafter/block_conv.h"
#include "drafter/cpu/kernels.h"
#include "drafter/plan.h"
#include "drafter/select_path.h"

namespace dflash {

static void run_conv_cpu(const BlockConvParams& p, int32_t) {
  if (p.cu_rows) {
    torch::stable::parallel_for(
        0, p.num_rows, drafter_grain(p.num_channels),
        [&](int64_t begin, int64_t end) { block_conv_fill_cpu(p, begin, end); });
  }
  const int64_t rows_per_block = p.num_rows / std::max<int64_t>(1, p.num_blocks);
  torch::stable::parallel_for(0, p.num_blocks,
                              drafter_grain(rows_per_block * p.num_taps * p.num_channels),
                              [&](int64_t begin, int64_t end) { block_conv_cpu(p, begin, end); });
}

static void run_path_cpu(const SelectPathParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_requests,
                              drafter_grain(p.num_slots * p.num_candidates * p.rank),
                              [&](int64_t begin, int64_t end) { select_path_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("block_conv", TORCH_BOX(&block_conv<run_conv_cpu>));
  m.impl("block_conv.out", TORCH_BOX(&block_conv_out<run_conv_cpu>));
  m.impl("select_path", TORCH_BOX(&select_path<run_path_cpu>));
  m.impl("select_path.out", TORCH_BOX(&select_path_out<run_path_cpu>));
}

}  // namespace dflash
