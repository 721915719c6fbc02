// Which work tree_attention has: tiles of rows, and aligned runs of leaves of their keys. No bit of
// a result depends on it.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/params.h"

namespace dflash {

inline constexpr int64_t kMaxTileRows = 128;

// The limits of what a node may ask for.
inline constexpr int64_t kMaxNodes = 256;
inline constexpr int64_t kMaxDepth = 65535;

struct AttentionRequest {
  int64_t idx;
  int64_t state_row;
  int64_t first_row;
  int64_t num_rows;  // without those dropped as bad nodes
  int64_t ctx_len;
  int64_t table_begin, table_end;  // sequence indices that the page table has entries for
  int64_t kv_start;
  bool is_tree;
};

// Rows of one request that walk the keys together, with all query heads of a KV head.
struct AttentionTile {
  int64_t request;  // index into AttentionPlan::requests
  int64_t row;      // first row, within the request
  int64_t num_rows;
  int64_t key_begin, key_end;  // positions that some row may see
  int64_t first_run, num_runs;
  int64_t first_item;  // its items are [num_runs][num_kv_heads]: heads share memory pages
};

struct AttentionPlan {
  std::vector<AttentionRequest> requests;  // those with rows, by ascending first_row
  std::vector<AttentionTile> tiles;
  std::vector<int32_t> status;  // [B]
  int64_t max_pairs;            // (row, query head) pairs of the largest tile
  int64_t run_leaves;           // leaves per item, a power of two
  int64_t num_items;

  const AttentionTile& tile_of(int64_t item) const;
};

AttentionPlan plan_tree_attention(const TreeAttentionParams& p, int64_t num_threads);

// Position of a row, within its request.
int64_t row_position(const TreeAttentionParams& p, const AttentionRequest& request, int64_t row);

}  // namespace dflash
