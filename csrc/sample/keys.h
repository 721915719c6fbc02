// The one order of candidates, (value descending, id ascending), as one integer.
#pragma once

#include <bit>
#include <cstdint>

namespace dflash {

// A larger key is a better candidate. Values are not NaN and not -0; ids are below 2^32.
static constexpr uint64_t candidate_key(float value, int64_t id) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t ordered = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

static constexpr float key_value(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(ordered ^ (ordered >> 31 ? 0x80000000u : 0xffffffffu));
}

static constexpr int64_t key_id(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// The best candidate so far; which one comes first does not matter.
struct Best {
  float score;
  float value;
  int64_t id = -1;

  constexpr void offer(float new_score, float new_value, int64_t new_id) {
    if (id < 0 || new_score > score || (new_score == score && new_id < id)) {
      *this = {new_score, new_value, new_id};
    }
  }
  constexpr void offer(const Best& other) {
    if (other.id >= 0) offer(other.score, other.value, other.id);
  }
};

}  // namespace dflash
