#include "attention/cpu/plan.h"

#include <algorithm>
#include <bit>

#include "attention/cpu/block_ops.h"

namespace dflash {
namespace {

// Lengths past this are bad data. It leaves room to add a few of them.
constexpr int64_t kMaxLength = int64_t{1} << 40;

constexpr int64_t kMaxRunLeaves = 4;
constexpr int64_t kItemsPerThread = 8;

bool is_bad_depth(int64_t depth) { return depth < 0 || depth > kMaxDepth; }

// Rows before the first bad node. The anchor always stays.
int64_t count_good_nodes(const TreeAttentionParams& p, const RowRange& rows) {
  int64_t i = 0;
  while (i < rows.count && i < kMaxNodes && !is_bad_depth(p.depth[rows.first + i])) ++i;
  return std::max<int64_t>(i, 1);
}

// Fills in a request; false if it has no rows. Bad ones have none, nor those that would share rows
// with one before them. `rows_end`: end of the rows taken so far.
bool read_request(const TreeAttentionParams& p, int64_t b, AttentionRequest& r, int64_t& rows_end,
                  int32_t& status) {
  const RowRange rows = row_range(p.cu_rows, b, p.num_rows);
  if (!rows.in_range || (rows.count > 0 && rows.first < rows_end) || p.request_rows.is_bad(b)) {
    status |= kOutOfRange;
    return false;
  }
  r.idx = b;
  r.state_row = p.request_rows[b];
  if (r.state_row < 0 || rows.count == 0) return false;

  const int64_t start = p.pages.table_start ? p.pages.table_start[r.state_row] : 0;
  const int64_t length = p.lengths.lens[r.state_row];
  if (start < 0 || start > kMaxLength || length < 0 || length > kMaxLength) {
    status |= kOutOfRange;
    return false;
  }
  r.first_row = rows.first;
  r.ctx_len = p.lengths.before(r.state_row, rows.count);
  r.table_begin = start;
  r.table_end = start + p.pages.block_table.num_cols * p.pages.page_size;
  r.kv_start = p.kv_start ? std::clamp<int64_t>(p.kv_start[r.state_row], 0, 2 * kMaxLength) : 0;
  if (r.ctx_len < r.table_begin || r.ctx_len > r.table_end) {
    status |= kOutOfRange;
    return false;
  }
  r.is_tree = p.mask_bits && (!p.tree_nodes || p.tree_nodes[b] > 0);
  r.num_rows = r.is_tree ? count_good_nodes(p, rows) : rows.count;
  if (r.is_tree && (r.num_rows < rows.count || is_bad_depth(p.depth[rows.first]))) {
    status |= kBadTree;
  }
  rows_end = rows.first + rows.count;
  return true;
}

// Positions that some row of the tile may see, and that exist.
void bound_keys(const TreeAttentionParams& p, const AttentionRequest& r, AttentionTile& tile) {
  int64_t first = row_position(p, r, tile.row), last = first;
  for (int64_t i = 1; i < tile.num_rows; ++i) {
    const int64_t position = row_position(p, r, tile.row + i);
    first = std::min(first, position);
    last = std::max(last, position);
  }
  int64_t end = r.ctx_len;
  if (r.is_tree) {
    for (int64_t i = 0; i < r.num_rows; ++i) end = std::max(end, row_position(p, r, i) + 1);
  } else {
    end = std::min(p.causal ? last + 1 : r.ctx_len + r.num_rows, r.table_end);
  }
  int64_t begin = std::max(r.kv_start, r.table_begin);
  if (p.window_left >= 0) begin = std::max(begin, first - std::min(p.window_left, kMaxLength));
  if (p.window_right >= 0) end = std::min(end, last + std::min(p.window_right, kMaxLength) + 1);
  tile.key_begin = begin;
  tile.key_end = std::max(begin, end);
}

int64_t leaf_begin(const AttentionTile& tile) { return tile.key_begin / kLeafKeys; }
int64_t leaf_end(const AttentionTile& tile) { return (tile.key_end + kLeafKeys - 1) / kLeafKeys; }

}  // namespace

int64_t row_position(const TreeAttentionParams& p, const AttentionRequest& request, int64_t row) {
  if (!request.is_tree) return request.ctx_len + row;
  const int64_t depth = p.depth[request.first_row + row];
  return request.ctx_len + (is_bad_depth(depth) ? 0 : depth);  // only the anchor's can be
}

const AttentionTile& AttentionPlan::tile_of(int64_t item) const {
  const auto after = std::ranges::upper_bound(tiles, item, {}, &AttentionTile::first_item);
  return *(after - 1);
}

AttentionPlan plan_tree_attention(const TreeAttentionParams& p, int64_t num_threads) {
  AttentionPlan plan{};
  plan.status.resize(p.num_requests);
  const int64_t group = p.num_heads / p.num_kv_heads;
  const int64_t tile_rows = std::max<int64_t>(1, kMaxTileRows / group);
  int64_t rows_end = 0, num_leaves = 0;
  for (int64_t b = 0; b < p.num_requests; ++b) {
    AttentionRequest request{};
    if (!read_request(p, b, request, rows_end, plan.status[b])) continue;
    const auto request_idx = static_cast<int64_t>(plan.requests.size());
    for (int64_t row = 0; row < request.num_rows; row += tile_rows) {
      AttentionTile tile{};
      tile.request = request_idx;
      tile.row = row;
      tile.num_rows = std::min(tile_rows, request.num_rows - row);
      bound_keys(p, request, tile);
      num_leaves += p.num_kv_heads * (leaf_end(tile) - leaf_begin(tile));
      plan.max_pairs = std::max(plan.max_pairs, tile.num_rows * group);
      plan.tiles.push_back(tile);
    }
    plan.requests.push_back(request);
  }

  const int64_t leaves_per_item = num_leaves / (num_threads * kItemsPerThread);
  plan.run_leaves =
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(leaves_per_item, 1, kMaxRunLeaves)));
  for (AttentionTile& tile : plan.tiles) {
    tile.first_run = leaf_begin(tile) / plan.run_leaves;
    const int64_t run_end = (leaf_end(tile) + plan.run_leaves - 1) / plan.run_leaves;
    tile.num_runs = std::max<int64_t>(1, run_end - tile.first_run);
    tile.first_item = plan.num_items;
    plan.num_items += tile.num_runs * p.num_kv_heads;
  }
  return plan;
}

}  // namespace dflash
