// Host arithmetic of the drafter ops.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dflash {

// CPU: items per task when each takes this many multiply-adds. To wake a thread costs more than
// 2^15 of them.
constexpr int64_t drafter_grain(int64_t macs_per_item) {
  constexpr int64_t kMacsPerTask = 1 << 15;
  return std::max<int64_t>(1, kMacsPerTask / std::max<int64_t>(1, macs_per_item));
}

}  // namespace dflash
