// The noise words of a block of ids, in 64-bit lanes: a template on the vector type `L`. A lane
// holds one group's counter word in its lower half; what the products leave above it is not read.
// In an unnamed namespace, as span_loops.h.
#pragma once

#include "sample/cpu/span.h"

namespace dflash {
namespace {

template <class L>
class NoiseLanes {
 public:
  explicit NoiseLanes(const NoiseKey& key)
      : token_(L::broadcast(key.token_idx)),
        purpose_(L::broadcast(key.purpose)),
        anchor_(L::broadcast(key.anchor_idx)) {
    uint32_t low = static_cast<uint32_t>(key.seed), high = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < kRounds; ++round) {
      keys_[round][0] = L::broadcast(low);
      keys_[round][1] = L::broadcast(high);
      low += Philox::kKeyStepLow;
      high += Philox::kKeyStepHigh;
    }
  }

  // words[4 * i + j] = word j of group first_group + i
  void block(uint32_t first_group, uint32_t* words) const {
    for (int i = 0; i < kLseBlock / 4; i += L::kLanes) {
      typename L::Reg c0 = L::add(L::broadcast(first_group + i), L::indices());
      typename L::Reg c1 = token_, c2 = purpose_, c3 = anchor_;
      _Pragma("GCC unroll 10") for (int round = 0; round < kRounds; ++round) {
        const typename L::Reg product0 = L::multiply(c0, L::broadcast(Philox::kMultiplier0));
        const typename L::Reg product2 = L::multiply(c2, L::broadcast(Philox::kMultiplier2));
        c0 = L::exclusive_or(L::upper_half(product2), c1, keys_[round][0]);
        c2 = L::exclusive_or(L::upper_half(product0), c3, keys_[round][1]);
        c1 = product2;
        c3 = product0;
      }
      L::store(c0, c1, c2, c3, words + 4 * i);
    }
  }

 private:
  static constexpr int kRounds = Philox::kRounds;

  typename L::Reg token_, purpose_, anchor_;
  typename L::Reg keys_[kRounds][2];
};

}  // namespace
}  // namespace dflash
