// The best keys of a stream, in a buffer of the caller's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include "sample/keys.h"

namespace dflash {

class TopKeys {
 public:
  TopKeys() = default;
  // Keeps the best `keep` keys; the buffer holds `capacity` > keep of them.
  TopKeys(uint64_t* buffer, int64_t keep, int64_t capacity)
      : keys_(buffer), keep_(keep), capacity_(capacity) {}

  void offer(uint64_t key) {
    if (key <= least_) return;
    keys_[count_++] = key;
    if (count_ == capacity_) shrink();
  }

  // What is below this cannot be among the best any more. Finite: -inf never is.
  float threshold() const {
    return least_ == 0 ? std::numeric_limits<float>::lowest() : key_value(least_);
  }

  // Sorts the best keys, the best first; returns how many there are.
  int64_t sort() {
    if (count_ > keep_) shrink();
    std::sort(keys_, keys_ + count_, std::greater<>());
    return count_;
  }
  const uint64_t* keys() const { return keys_; }

 private:
  void shrink() {
    std::nth_element(keys_, keys_ + keep_ - 1, keys_ + count_, std::greater<>());
    count_ = keep_;
    least_ = keys_[keep_ - 1];
  }

  uint64_t* keys_ = nullptr;
  int64_t keep_ = 0;
  int64_t capacity_ = 0;
  int64_t count_ = 0;
  uint64_t least_ = 0;  // of the kept ones, once there were `keep`
};

}  // namespace dflash
