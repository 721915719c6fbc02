// The noise of every sampler: which Philox word belongs to which draw, and what is made of it.
// docs/noise.md is the contract; bits and counters are frozen with the first release.
#pragma once

#include <bit>
#include <cstdint>

#include "common/logf.h"
#include "common/philox.h"

namespace dflash {

enum Stream : uint32_t {
  kTargetStream = 0,    // the target's own token: match verification and plain sampling
  kDraftStream = 1,     // a drafter's samples
  kCoinStream = 2,      // acceptance coins of rejection verification
  kResidualStream = 3,  // residual and bonus tokens of rejection verification
};

// All the noise of one row for one purpose: a word, and 32 more bits below it, for every index.
struct NoiseKey {
  uint64_t seed;
  uint32_t token_idx;   // sequence index of the token that is drawn
  uint32_t purpose;     // stream | extended << 2 | ordinal << 3 | parent's local row << 12
  uint32_t anchor_idx;  // sequence index of this cycle's anchor; 0 for kTargetStream
};

static constexpr Words noise_words(const NoiseKey& key, uint32_t group, bool extended) {
  const uint32_t purpose = key.purpose | (extended ? 4u : 0u);
  return philox(key.seed, {{group, key.token_idx, purpose, key.anchor_idx}});
}

static constexpr NoiseKey target_noise(int64_t seed, int64_t token_idx) {
  return {static_cast<uint64_t>(seed), static_cast<uint32_t>(token_idx), kTargetStream, 0};
}

static constexpr NoiseKey cycle_noise(Stream stream, int64_t seed, int64_t token_idx,
                                      int64_t anchor_idx, int64_t parent_row, int64_t ordinal = 0) {
  return {static_cast<uint64_t>(seed), static_cast<uint32_t>(token_idx),
          stream | static_cast<uint32_t>(ordinal << 3) | static_cast<uint32_t>(parent_row << 12),
          static_cast<uint32_t>(anchor_idx)};
}

// Words below this are refined by a second word, so that the tail of the noise reaches 2^-64.
static constexpr uint32_t kExtendBelow = 1u << 24;

// -log(-log(v)) for v = 1 - (word + 1/2) 2^-32: standard Gumbel noise, -3.14 .. 45.1. The large
// values belong to small words; there (word, low) are 64 bits of a finer v.
static constexpr float gumbel(uint32_t word, uint32_t low) {
  float exponential;
  if (word < kExtendBelow) {
    const uint64_t wide = uint64_t{word} << 32 | low;
    exponential = -log1m_f32(static_cast<float>(2 * wide + 1) * 0x1p-65f);
  } else if (word < 1u << 31) {
    exponential = -log1m_f32(static_cast<float>(2 * word + 1) * 0x1p-33f);
  } else {
    exponential = -log_f32(static_cast<float>(2 * ~word + 1) * 0x1p-33f);
  }
  return -log_f32(exponential);
}

// At least gumbel(word, any): -log(word 2^-32), with log2 replaced by the chord below it, which the
// bits of a float are; so at most 0.06 above that. The slack covers every rounding. What cannot win
// even with this noise needs no logarithm.
static constexpr float gumbel_bound(uint32_t word) {
  constexpr float kLn2 = 0x1.62e43p-1f;
  // Halved first: only signed integers convert in one instruction everywhere.
  const auto half = static_cast<float>(static_cast<int32_t>(word >> 1));
  const auto bits = static_cast<float>(std::bit_cast<int32_t>(half));
  return std::fma(bits, -kLn2 * 0x1p-23f, 158.0f * kLn2 + 1e-4f);
}
static constexpr float kGumbelMax = 45.06f;  // of any word

// The noise of an id whose word is known.
static constexpr float gumbel_at(const NoiseKey& key, int64_t id, uint32_t word) {
  if (word >= kExtendBelow) return gumbel(word, 0);
  return gumbel(word, noise_words(key, static_cast<uint32_t>(id >> 2), true).pick(id));
}
static constexpr float gumbel_at(const NoiseKey& key, int64_t id) {
  return gumbel_at(key, id, noise_words(key, static_cast<uint32_t>(id >> 2), false).pick(id));
}

// (word + 1/2) 2^-32, refined likewise, rounded towards zero: 0 < u < 1.
static constexpr float coin(uint32_t word, uint32_t low) {
  const bool is_wide = word < kExtendBelow;
  const uint64_t odd = 2 * (is_wide ? uint64_t{word} << 32 | low : uint64_t{word}) + 1;
  const auto nearest = static_cast<float>(odd);
  const bool is_above = static_cast<uint64_t>(nearest) > odd;
  const auto bits = std::bit_cast<uint32_t>(nearest) - (is_above ? 1 : 0);
  return std::bit_cast<float>(bits) * (is_wide ? 0x1p-65f : 0x1p-33f);
}

static constexpr float coin_at(const NoiseKey& key, int64_t local_row) {
  const auto row = static_cast<uint32_t>(local_row);
  const uint32_t word = noise_words(key, row, false).word[0];
  return coin(word, word < kExtendBelow ? noise_words(key, row, true).word[0] : 0);
}

}  // namespace dflash
