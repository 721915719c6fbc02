// Host arithmetic of tree_attention on CUDA: sizes -> grid, workspace. Nothing here reads a length:
// what depends on them is planned on the device, into a list of tiles.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/params.h"

namespace dflash {

inline constexpr int kTilePairs = 64;  // (row, query head) pairs of a CTA: 16 per warp
inline constexpr int kBlockKeys = 64;
inline constexpr int64_t kLeafKeys = 512;
inline constexpr int64_t kMaxNodes = 256;
inline constexpr int64_t kMaxDepth = 65535;

// Rows of one request that walk its keys together, and what is known of the request.
struct AttentionTile {
  int64_t request;
  int64_t state_row;
  int64_t first_row;     // packed row of the request's first
  int64_t request_rows;  // without those dropped as bad nodes
  int64_t row;           // the tile's first, within the request
  int64_t num_rows;      // 0: an unused place in the list
  int64_t ctx_len;
  int64_t table_begin, table_end;  // sequence indices that the page table has entries for
  int64_t kv_start;
  int64_t key_begin, key_end;  // positions that some row may see
  bool is_tree;
};

struct TreeAttentionPlan {
  int64_t tile_rows;
  int64_t max_tiles;
  int64_t head_parts;  // of kTilePairs query heads, where a KV head has more
  int64_t num_splits;  // CTAs that share the leaves of a tile
  int64_t num_levels;  // states that a CTA may have to set aside
  int64_t state_floats;
  int64_t num_items;
  int64_t tiles_bytes;
  int64_t workspace_bytes;
};

// Kernels are instantiated for these.
constexpr int padded_head_dim(const TreeAttentionParams& p) {
  const int64_t dim = std::max(p.k_dim, p.v_dim);
  return dim <= 64 ? 64 : (dim <= 128 ? 128 : 256);
}

// A state is the maximum, the sum and the weighted values of every pair.
constexpr TreeAttentionPlan plan_tree_attention_cuda(const TreeAttentionParams& p) {
  constexpr int64_t kCtas = 264;  // two on each SM of a large GPU
  constexpr int64_t kMaxSplits = 32;
  TreeAttentionPlan plan{};
  const int64_t group = p.num_heads / p.num_kv_heads;
  plan.tile_rows = std::max<int64_t>(1, kTilePairs / std::max<int64_t>(group, 1));
  plan.max_tiles = p.num_rows / plan.tile_rows + p.num_requests;
  plan.head_parts = std::max<int64_t>(1, (group + kTilePairs - 1) / kTilePairs);
  const int64_t tasks = plan.max_tiles * p.num_kv_heads * plan.head_parts;
  const int64_t max_leaves =
      p.pages.block_table.num_cols * p.pages.page_size / kLeafKeys + 2;  // it may begin in a leaf
  plan.num_splits =
      std::clamp<int64_t>(kCtas / std::max<int64_t>(tasks, 1), 1, std::min(kMaxSplits, max_leaves));
  plan.num_levels = std::bit_width(static_cast<uint64_t>(max_leaves)) + 2;
  plan.state_floats = kTilePairs * (2 + p.v_dim);
  plan.num_items = tasks * plan.num_splits;
  plan.tiles_bytes =
      (plan.max_tiles * static_cast<int64_t>(sizeof(AttentionTile)) + 255) / 256 * 256;
  plan.workspace_bytes =
      plan.tiles_bytes + plan.num_items * plan.num_levels * plan.state_floats * 4;
  return plan;
}

}  // namespace dflash
