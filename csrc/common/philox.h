// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a counter and
// a key give four random words, with no state.
#pragma once

#include <cstdint>

namespace dflash {

struct Words {
  uint32_t word[4];

  // word[i & 3], chosen without an address: on a GPU an index that is not known to the compiler
  // would send the words through memory.
  constexpr uint32_t pick(int64_t i) const {
    const uint32_t low = i & 1 ? word[1] : word[0], high = i & 1 ? word[3] : word[2];
    return i & 2 ? high : low;
  }
};

struct Philox {  // what the rounds are made of, for loops over vectors too
  static constexpr int kRounds = 10;
  static constexpr uint32_t kMultiplier0 = 0xd2511f53, kMultiplier2 = 0xcd9e8d57;
  static constexpr uint32_t kKeyStepLow = 0x9e3779b9, kKeyStepHigh = 0xbb67ae85;
};

static constexpr Words philox(uint64_t key, Words counter) {
  uint32_t key_low = static_cast<uint32_t>(key), key_high = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  _Pragma("GCC unroll 10") for (int round = 0; round < Philox::kRounds; ++round) {
    const uint64_t product0 = uint64_t{Philox::kMultiplier0} * c0;
    const uint64_t product2 = uint64_t{Philox::kMultiplier2} * c2;
    c0 = static_cast<uint32_t>(product2 >> 32) ^ c1 ^ key_low;
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key_high;
    c1 = static_cast<uint32_t>(product2);
    c3 = static_cast<uint32_t>(product0);
    key_low += Philox::kKeyStepLow;
    key_high += Philox::kKeyStepHigh;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace dflash
