// L1's fixed binary tree over the leaf index.
#pragma once

#include <bit>

#include "attention/cpu/block_ops.h"

namespace dflash {

// Takes states by ascending index and merges two neighbours as soon as nothing can come between:
// i and j meet at the height bit_width(i ^ j). An index that never comes is an empty state, which
// passes the other's bits through, so the result depends neither on where the tree begins or ends
// nor on how it was cut into aligned runs.
class MergeTree {
 public:
  // More than the width of any index.
  static constexpr int kMaxStates = 65;

  MergeTree(const BlockOps& ops, int64_t num_pairs, int64_t out_dim)
      : ops_(ops), num_pairs_(num_pairs), out_dim_(out_dim) {}

  // Makes room for the state of `idx`: merges what lies below its junction. Returns how many
  // states are held, so a caller may keep the n-th state in the n-th of its buffers.
  int make_room(int64_t idx) {
    if (count_ > 0) {
      const int height = std::bit_width(static_cast<uint64_t>(last_ ^ idx));
      while (count_ > 1 && heights_[count_ - 1] < height) merge_top();
      heights_[count_] = height;
    }
    last_ = idx;
    return count_;
  }

  void push(const SoftmaxState& state) { states_[count_++] = state; }

  // Everything, in the buffers of the first state.
  void finish() {
    while (count_ > 1) merge_top();
  }

 private:
  void merge_top() {
    --count_;
    ops_.merge(states_[count_ - 1], states_[count_], num_pairs_, out_dim_);
  }

  const BlockOps& ops_;
  int64_t num_pairs_, out_dim_;
  SoftmaxState states_[kMaxStates];
  int heights_[kMaxStates];  // where states_[i - 1] and states_[i] meet
  int count_ = 0;
  int64_t last_ = 0;
};

}  // namespace dflash
