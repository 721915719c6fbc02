// Host arithmetic of the lm_head ops.
#pragma once

#include <cstdint>

namespace dflash {

inline constexpr int64_t kMaxTopk = 64;  // that lm_head_topk returns, and that lm_head_gather takes

// Floats per row of logits in the fallback's workspace: whole spans of 512 ids from any first id.
constexpr int64_t fallback_stride(int64_t num_columns) { return (num_columns / 512 + 2) * 512; }

constexpr int64_t fallback_bytes(int64_t max_fallback_rows, int64_t num_columns) {
  return max_fallback_rows * fallback_stride(num_columns) * int64_t{sizeof(float)};
}

}  // namespace dflash
