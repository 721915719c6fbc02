// Host arithmetic of the kv ops: sizes -> grids and CPU tasks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dflash {

// Items per task when each moves `elements_per_item`: to wake a thread costs more than 2^15 of
// them.
constexpr int64_t elements_grain(int64_t elements_per_item) {
  constexpr int64_t kElementsPerTask = 1 << 15;
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_item));
}

// CUDA, rope_append_kv: rows of one head per CTA, a warp each. Enough that a look through all slots
// for later rows is little beside the rows themselves.
inline constexpr int kRopeRowsPerCta = 8;

constexpr int64_t rope_row_ctas(int64_t num_rows) {
  return (num_rows + kRopeRowsPerCta - 1) / kRopeRowsPerCta;
}

// One at least: without heads there is still the status of the rows.
constexpr int64_t rope_head_ctas(int64_t num_q_heads, int64_t num_kv_heads) {
  return std::max<int64_t>(1, num_q_heads + num_kv_heads);
}

// CUDA, compact_kv: threads of a CTA, each with a column of up to 16 bytes, and how much of the
// call one launch takes as its argument: 27 KB of the 32 KB that there are. More layers take more
// launches; more groups are refused.
inline constexpr int kCompactBlock = 128;
inline constexpr int kCompactMaxLayers = 128;
inline constexpr int kCompactMaxGroups = 16;

constexpr int64_t compact_column_ctas(int64_t row_bytes) {
  return std::max<int64_t>(1, (row_bytes + 16 * kCompactBlock - 1) / (16 * kCompactBlock));
}

// CUDA, commit_state: threads of a CTA and bytes that it copies of a row; layers of one launch.
inline constexpr int kStateBlock = 256;
inline constexpr int64_t kStateBytesPerCta = 16 * 4 * kStateBlock;
inline constexpr int kStateMaxLayers = 256;

// CUDA, release_pages: a request's entries to release, and their number.
constexpr int64_t release_pages_bytes(int64_t num_requests, int64_t max_pages) {
  return 8 * num_requests * (max_pages + 1);
}

}  // namespace dflash
