// The blocks of a leaf, in their order.
#pragma once

#include "attention/cuda/keys.cuh"

namespace dflash {

// Blocks where a tree's own rows begin come once per query row of the tile.
struct LeafBlocks {
  const TreeAttentionParams& p;
  const AttentionTile& tile;
  const int64_t leaf;

  __device__ KeyBlock none() const { return {-kLeafKeys, -1}; }
  __device__ KeyBlock first() const {
    return from(most(leaf * kLeafKeys, tile.key_begin / kBlockKeys * kBlockKeys));
  }
  __device__ bool has(const KeyBlock& block) const {
    return block.begin / kLeafKeys == leaf && block.begin < tile.key_end;
  }

  // The next block from a position on, whether the leaf has it or not.
  __device__ KeyBlock from(int64_t begin) const {
    const bool is_own = tile.is_tree && begin + kBlockKeys > tile.ctx_len;
    if (tile.is_tree && begin >= tile.ctx_len) begin = next_own(begin) / kBlockKeys * kBlockKeys;
    return {begin, is_own ? 0 : -1};
  }
  __device__ KeyBlock after(const KeyBlock& block) const {
    if (block.row >= 0 && block.row + 1 < tile.num_rows) return {block.begin, block.row + 1};
    return from(block.begin + kBlockKeys);
  }

  // The first position from `begin` on where an own row stands: depths may leave wide gaps.
  __device__ int64_t next_own(int64_t begin) const {
    int64_t first = kUnbounded;
    for (int64_t i = lane_index(); i < tile.request_rows; i += kWarpSize) {
      const int64_t position = row_position(p, tile, i);
      if (position >= begin) first = least(first, position);
    }
    return warp_min(first);
  }
};

}  // namespace dflash
