// Who a thread is, and what a warp does together. Warps are whole: every mask is full.
#pragma once

#include <cstdint>

namespace dflash {

inline constexpr int kWarpSize = 32;
inline constexpr uint32_t kFullMask = 0xffffffff;

static __device__ int lane_index() { return static_cast<int>(threadIdx.x % kWarpSize); }
static __device__ int warp_index() { return static_cast<int>(threadIdx.x / kWarpSize); }

// This warp's number in the grid: warps that leave by it leave together.
static __device__ int64_t warp_of_grid() {
  return int64_t{blockIdx.x} * (blockDim.x / kWarpSize) + warp_index();
}

// The lowest lane whose `condition` holds; kWarpSize if none.
static __device__ int first_lane(bool condition) {
  const uint32_t lanes = __ballot_sync(kFullMask, condition);
  return lanes != 0 ? __ffs(static_cast<int>(lanes)) - 1 : kWarpSize;  // __ffs counts from 1
}

}  // namespace dflash
