#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

#include "common/cuda.h"
#include "kv/compact_kv.h"
#include "kv/cuda/launch.h"
#include "kv/plan.h"

namespace dflash {

static void run_cuda(const CompactKvParams& p, int32_t device_idx) {
  if (p.num_groups > kCompactMaxGroups) {
    throw std::runtime_error("compact_kv: len(block_tables) must be at most " +
                             std::to_string(kCompactMaxGroups) + " on cuda, got " +
                             std::to_string(p.num_groups));
  }
  const CudaScope scope(device_idx);
  STD_CUDA_CHECK(launch_compact_kv(p, scope.stream));
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CUDA, m) {
  m.impl("compact_kv", TORCH_BOX(&compact_kv<run_cuda>));
}

}  // namespace dflash
