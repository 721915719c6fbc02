#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "kv/compact_kv.h"
#include "kv/cpu/kernels.h"
#include "kv/plan.h"

namespace dflash {

static void run_cpu(const CompactKvParams& p, int32_t) {
  int64_t row_bytes = 1;
  if (p.num_layers > 0) {
    for (const PagedBytes& t : p.layers[0].tensors) row_bytes += t.num_pieces * t.piece_bytes;
  }
  torch::stable::parallel_for(0, p.num_layers * p.num_requests,
                              elements_grain(row_bytes * p.accepted_rows.num_cols),
                              [&](int64_t begin, int64_t end) { compact_kv_cpu(p, begin, end); });
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) { m.impl("compact_kv", TORCH_BOX(&compact_kv<run_cpu>)); }

}  // namespace dflash
