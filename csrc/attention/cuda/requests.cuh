// What a request asks for, read from device memory: the CUDA twin of attention/cpu/plan.cpp.
#pragma once

#include "attention/cuda/tree_plan.h"
#include "device/warp.cuh"

namespace dflash {

inline constexpr int64_t kMaxLength = int64_t{1} << 40;  // past it a length is bad data
inline constexpr int64_t kUnbounded = int64_t{1} << 60;

__device__ inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ inline int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }

__device__ inline bool is_bad_depth(int64_t depth) { return depth < 0 || depth > kMaxDepth; }

// Position of a row of the tile's request.
__device__ inline int64_t row_position(const TreeAttentionParams& p, const AttentionTile& tile,
                                       int64_t row) {
  if (!tile.is_tree) return tile.ctx_len + row;
  const int64_t depth = p.depth[tile.first_row + row];
  return tile.ctx_len + (is_bad_depth(depth) ? 0 : depth);  // only the anchor's can be
}

// The request of `tile`, without its rows' depths; false if it has no rows or is bad.
__device__ inline bool read_request(const TreeAttentionParams& p, int64_t b, AttentionTile& tile,
                                    RowRange& rows, int32_t& status) {
  rows = row_range(p.cu_rows, b, p.num_rows);
  if (!rows.in_range || p.request_rows.is_bad(b)) {
    status |= kOutOfRange;
    return false;
  }
  tile.request = b;
  tile.state_row = p.request_rows[b];
  if (tile.state_row < 0 || rows.count == 0) return false;
  const int64_t start = p.pages.table_start ? p.pages.table_start[tile.state_row] : 0;
  const int64_t length = p.lengths.lens[tile.state_row];
  if (start < 0 || start > kMaxLength || length < 0 || length > kMaxLength) {
    status |= kOutOfRange;
    return false;
  }
  tile.first_row = rows.first;
  tile.request_rows = rows.count;
  tile.ctx_len = p.lengths.before(tile.state_row, rows.count);
  tile.table_begin = start;
  tile.table_end = start + p.pages.block_table.num_cols * p.pages.page_size;
  tile.kv_start = p.kv_start ? least(most(p.kv_start[tile.state_row], 0), 2 * kMaxLength) : 0;
  tile.is_tree = p.mask_bits && (!p.tree_nodes || p.tree_nodes[b] > 0);
  if (tile.ctx_len < tile.table_begin || tile.ctx_len > tile.table_end) {
    status |= kOutOfRange;
    return false;
  }
  return true;
}

__device__ inline int64_t warp_min(int64_t value) {
  for (int width = 1; width < kWarpSize; width *= 2) {
    value = least(value, __shfl_xor_sync(kFullMask, value, width));
  }
  return value;
}
__device__ inline int64_t warp_max(int64_t value) { return -warp_min(-value); }

// By a whole warp: rows before the first bad node. The anchor always stays.
__device__ inline int64_t count_good_nodes(const TreeAttentionParams& p, const RowRange& rows,
                                           bool& anchor_is_bad) {
  const int64_t count = least(rows.count, kMaxNodes);
  int64_t first_bad = count;
  for (int64_t i = lane_index(); i < count; i += kWarpSize) {
    if (is_bad_depth(p.depth[rows.first + i])) first_bad = least(first_bad, i);
  }
  first_bad = warp_min(first_bad);
  anchor_is_bad = first_bad == 0;
  return most(first_bad, 1);
}

// By a whole warp: positions that some row of the tile may see, and that exist.
__device__ inline void bound_keys(const TreeAttentionParams& p, AttentionTile& tile) {
  int64_t first = tile.ctx_len + tile.row, last = first + tile.num_rows - 1, end = tile.ctx_len;
  if (tile.is_tree) {
    first = kUnbounded, last = 0;
    for (int64_t i = lane_index(); i < tile.request_rows; i += kWarpSize) {
      const int64_t position = row_position(p, tile, i);
      end = most(end, position + 1);
      if (i < tile.row || i >= tile.row + tile.num_rows) continue;
      first = least(first, position);
      last = most(last, position);
    }
    first = warp_min(first), last = warp_max(last), end = warp_max(end);
  } else {
    end = least(p.causal ? last + 1 : tile.ctx_len + tile.request_rows, tile.table_end);
  }
  int64_t begin = most(tile.kv_start, tile.table_begin);
  if (p.window_left >= 0) begin = most(begin, first - least(p.window_left, kMaxLength));
  if (p.window_right >= 0) end = least(end, last + least(p.window_right, kMaxLength) + 1);
  tile.key_begin = begin;
  tile.key_end = most(begin, end);
}

// The aligned runs of leaves that CTAs share: as short as the number of CTAs allows. How long they
// are changes no bit.
struct LeafRuns {
  int64_t first_leaf, end_leaf;
  int log_leaves;  // of a run
  int64_t first_run, num_runs;

  __device__ LeafRuns(const AttentionTile& tile, int64_t num_splits)
      : first_leaf(tile.key_begin / kLeafKeys),
        end_leaf((tile.key_end + kLeafKeys - 1) / kLeafKeys),
        log_leaves(0) {
    const auto last_run = [&] { return most(end_leaf - 1, first_leaf) >> log_leaves; };
    while (last_run() - (first_leaf >> log_leaves) >= num_splits) ++log_leaves;
    first_run = first_leaf >> log_leaves;
    num_runs = last_run() - first_run + 1;
  }
};

__device__ inline void add_status(const StatusView& status, int64_t b, int32_t bits) {
  if (bits != 0 && status.data != nullptr) atomicOr(status.data + b * status.stride, bits);
}

}  // namespace dflash
