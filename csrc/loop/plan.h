// Host arithmetic of the loop ops.
#pragma once

#include <cstdint>

namespace dflash {

// Requests per CPU task: to wake a thread costs more than to walk this many short lists.
inline constexpr int64_t kRequestsPerTask = 1024;

// CUDA: one warp per request. It waits on latency, so few warps a CTA spread a batch over the SMs.
inline constexpr int kRequestsPerCta = 4;

constexpr int64_t num_request_ctas(int64_t num_requests) {
  return (num_requests + kRequestsPerCta - 1) / kRequestsPerCta;
}

}  // namespace dflash
