// The rows with a flag, numbered in order: whole warps count.
#pragma once

#include "device/warp.cuh"

namespace dflash {

// Flags before row i.
static __device__ int64_t flags_before(const int32_t* flags, int64_t i) {
  int64_t count = 0;
  for (int64_t base = 0; base < i; base += kWarpSize) {
    const int64_t row = base + lane_index();
    count += __popc(__ballot_sync(kFullMask, row < i && flags[row] != 0));
  }
  return count;
}

// The row with `number` flags before it; -1: there are not so many.
static __device__ int64_t row_of_flag(const int32_t* flags, int64_t num_rows, int64_t number) {
  for (int64_t base = 0; base < num_rows; base += kWarpSize) {
    const int64_t row = base + lane_index();
    uint32_t lanes = __ballot_sync(kFullMask, row < num_rows && flags[row] != 0);
    for (; lanes != 0; lanes &= lanes - 1, --number) {
      if (number == 0) return base + __ffs(static_cast<int>(lanes)) - 1;
    }
  }
  return -1;
}

}  // namespace dflash
