// The 64 largest of a stream of keys, by one warp. Keys are not 0, which stands for none.
#pragma once

#include <cstdint>

#include "device/warp.cuh"

namespace dflash {

// 64 keys in a warp: rank r is keys[r / 32] of lane r % 32.
struct WarpKeys {
  static constexpr int kCount = 2 * kWarpSize;

  uint64_t keys[2] = {};

  __device__ void load(const uint64_t* from, int64_t count) {
    for (int r = 0; r < 2; ++r) {
      const int64_t i = lane_index() + r * kWarpSize;
      keys[r] = i < count ? from[i] : 0;
    }
  }
  __device__ void store(uint64_t* to) const {
    for (int r = 0; r < 2; ++r) to[lane_index() + r * kWarpSize] = keys[r];
  }
  __device__ uint64_t least() const { return __shfl_sync(kFullMask, keys[1], kWarpSize - 1); }

  // One step of a bitonic sort: pairs `stride` apart, in descending order where (rank & size) is 0.
  __device__ void exchange(int stride, int size) {
    if (stride == kWarpSize) {
      const uint64_t high = max(keys[0], keys[1]), low = min(keys[0], keys[1]);
      keys[0] = high;
      keys[1] = low;
      return;
    }
    for (int r = 0; r < 2; ++r) {
      const int rank = lane_index() + r * kWarpSize;
      const uint64_t other = __shfl_xor_sync(kFullMask, keys[r], stride);
      const bool keeps_larger = ((rank & stride) == 0) == ((rank & size) == 0);
      keys[r] = keeps_larger ? max(keys[r], other) : min(keys[r], other);
    }
  }

  __device__ void sort() {
    for (int size = 2; size <= kCount; size *= 2) {
      for (int stride = size / 2; stride > 0; stride /= 2) exchange(stride, size);
    }
  }

  // The 64 largest of these and `other`, both in descending order: the larger of each rank and the
  // opposite one are those, in an order that one merge sorts.
  __device__ void merge(const WarpKeys& other) {
    const int opposite = kWarpSize - 1 - lane_index();
    const uint64_t low = __shfl_sync(kFullMask, other.keys[1], opposite);
    const uint64_t high = __shfl_sync(kFullMask, other.keys[0], opposite);
    keys[0] = max(keys[0], low);
    keys[1] = max(keys[1], high);
    for (int stride = kWarpSize; stride > 0; stride /= 2) exchange(stride, kCount);
  }
};

// Offered keys wait in shared memory until there are 64 to merge at once.
class WarpTopKeys {
 public:
  static constexpr int kPending = WarpKeys::kCount + kWarpSize;

  // best: those of a stream before this one, in descending order.
  __device__ explicit WarpTopKeys(uint64_t* pending, const WarpKeys& best = {})
      : pending_(pending), least_(best.least()), best_(best) {}

  // By all lanes, each with a key of its own or none.
  __device__ void offer(bool has_key, uint64_t key) {
    const bool passes = has_key && key > least_;
    const uint32_t lanes = __ballot_sync(kFullMask, passes);
    if (lanes == 0) return;
    const uint32_t before = lanes & ((1u << lane_index()) - 1);
    if (passes) pending_[num_pending_ + __popc(before)] = key;
    num_pending_ += __popc(lanes);
    if (num_pending_ >= WarpKeys::kCount) flush();
  }

  // The best keys, in descending order.
  __device__ const WarpKeys& finish() {
    if (num_pending_ > 0) flush();
    return best_;
  }

 private:
  __device__ void flush() {
    __syncwarp();
    WarpKeys next;
    next.load(pending_, num_pending_);
    const int rest = lane_index() + WarpKeys::kCount;
    const uint64_t key = rest < num_pending_ ? pending_[rest] : 0;
    __syncwarp();
    pending_[lane_index()] = key;
    num_pending_ = max(num_pending_ - WarpKeys::kCount, 0);
    next.sort();
    best_.merge(next);
    least_ = best_.least();
    __syncwarp();
  }

  uint64_t* pending_;  // [kPending]
  int num_pending_ = 0;
  uint64_t least_;  // of the best; 0 until there are 64
  WarpKeys best_;
};

}  // namespace dflash
