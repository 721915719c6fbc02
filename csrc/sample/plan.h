// Host arithmetic of the sample ops.
#pragma once

#include <cstdint>

namespace dflash {

inline constexpr int64_t kMaxCandidates = 1024;  // that sample_candidates takes per row

// Rows per task: elements enough to be worth waking a thread.
constexpr int64_t sample_grain(int64_t row_size) {
  constexpr int64_t kElementsPerTask = 1 << 14;
  return 1 + kElementsPerTask / (row_size + 64);
}

}  // namespace dflash
