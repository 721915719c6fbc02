// Host arithmetic of the loop ops.
#pragma once

#include <cstdint>

namespace dflash {

// Requests per CPU task: to wake a thread costs more than to walk this many short lists.
inline constexpr int64_t kRequestsPerTask = 1024;

}  // namespace dflash
