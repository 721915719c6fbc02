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

// context_kv: layers that one product projects, and bytes of what it leaves for all rows.
inline constexpr int kMaxStackedLayers = 16;
inline constexpr int64_t kMaxStackedBytes = 64 << 20;

// CUDA, context_kv: threads of a CTA that packs a row, and bytes that it copies of it: few rows are
// spread over the device. The workspace: offsets in bytes; the number of stored rows comes first.
inline constexpr int kPackContextBlock = 256;
inline constexpr int64_t kPackContextBytesPerCta = 16 * 2 * kPackContextBlock;

constexpr int64_t pack_context_parts(int64_t row_bytes) {
  return std::max<int64_t>(1, (row_bytes + kPackContextBytesPerCta - 1) / kPackContextBytesPerCta);
}

struct ContextKvPlan {
  int64_t element_bytes;
  int64_t rows;
  int64_t positions;
  int64_t slots;
  int64_t status;
  int64_t features;
  int64_t hidden;
  int64_t context;
  int64_t kv;  // of one stack of layers after the other
  int64_t workspace_bytes;

  // Rows of a matrix start at multiples of 16 bytes.
  constexpr int64_t pitch_bytes(int64_t num_cols) const {
    return (num_cols * element_bytes + 15) / 16 * 16;
  }
};

constexpr ContextKvPlan plan_context_kv(int64_t num_rows, int64_t num_groups, int64_t depth,
                                        int64_t hidden, int64_t kv_width, int64_t element_bytes) {
  ContextKvPlan plan{};
  plan.element_bytes = element_bytes;
  int64_t end = 16;
  const auto take = [&](int64_t num_bytes) {
    const int64_t begin = end;
    end += (num_bytes + 15) / 16 * 16;
    return begin;
  };
  plan.rows = take(8 * num_rows);
  plan.positions = take(8 * num_rows);
  plan.slots = take(8 * num_rows * num_groups);
  plan.status = take(4 * num_rows);
  plan.features = take(num_rows * plan.pitch_bytes(depth));
  plan.hidden = take(num_rows * plan.pitch_bytes(hidden));
  plan.context = take(num_rows * plan.pitch_bytes(hidden));
  plan.kv = take(num_rows * plan.pitch_bytes(kv_width));
  plan.workspace_bytes = end;
  return plan;
}

}  // namespace dflash
