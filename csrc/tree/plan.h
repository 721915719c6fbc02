// Host arithmetic of the tree ops.
#pragma once

#include <cstdint>

namespace dflash {

// CPU: items per task when `num_items` of them touch `num_values` words. To wake a thread costs
// more than 2^15.
constexpr int64_t tree_grain(int64_t num_items, int64_t num_values) {
  constexpr int64_t kValuesPerTask = 1 << 15;
  return 1 + kValuesPerTask * num_items / (num_values + 1);
}

// CUDA: threads of a CTA; a CTA per request, and one per so many rows for those of no request.
inline constexpr int kTreeMetadataBlock = 128;

constexpr int64_t tree_metadata_ctas(int64_t num_requests, int64_t num_rows) {
  return num_requests + (num_rows + kTreeMetadataBlock - 1) / kTreeMetadataBlock;
}

}  // namespace dflash
