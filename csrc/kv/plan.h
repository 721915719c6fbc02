// Host arithmetic of the kv ops: sizes -> CPU tasks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dflash {

// Items per task when each moves `elements_per_item`: to wake a thread costs more than 2^15 of
// them.
constexpr int64_t elements_grain(int64_t elements_per_item) {
  constexpr int64_t kElementsPerTask = 1 << 15;
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_item));
}

}  // namespace dflash
