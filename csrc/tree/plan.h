// Host arithmetic of the tree ops.
#pragma once

#include <cstdint>

namespace dflash {

// CPU: requests per task. To wake a thread costs more than this many words of mask.
constexpr int64_t tree_metadata_grain(int64_t num_requests, int64_t num_rows, int64_t num_words) {
  constexpr int64_t kWordsPerTask = 1 << 15;
  return 1 + kWordsPerTask * num_requests / (num_rows * (num_words + 4) + 1);
}

}  // namespace dflash
