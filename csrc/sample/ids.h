// Which ids a row has, and which of them its mask allows; for every backend.
#pragma once

#include <cstdint>

#include "sample/params.h"

namespace dflash {

// The ids of a row: first .. last - 1.
struct IdRange {
  int64_t first;
  int64_t last;
};

static constexpr IdRange id_range(const LogitOptions& o) {
  const int64_t end = o.vocab_start + o.num_columns;
  const int64_t last = end < o.vocab_size ? end : o.vocab_size;
  return {o.vocab_start, last > o.vocab_start ? last : o.vocab_start};
}

// Bit j: whether id 32 * word + j is allowed.
static constexpr uint32_t mask_word(const LogitOptions& o, int64_t mask_row, int64_t word) {
  if (mask_row < 0) return 0xffffffffu;
  return word < o.token_mask.num_cols ? static_cast<uint32_t>(o.token_mask(mask_row, word)) : 0;
}

static constexpr bool is_allowed(const LogitOptions& o, int64_t mask_row, int64_t id) {
  return (mask_word(o, mask_row, id / 32) >> (id % 32) & 1) != 0;
}

}  // namespace dflash
