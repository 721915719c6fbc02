// What the pass over the head leaves of every row for the last kernels of the lm_head ops, each a
// CTA of kFinishBlock threads per row.
#pragma once

#include "lm_head/cuda/head.h"
#include "sample/cuda/kept.cuh"

namespace dflash {

// A tile of ids: an aligned part of the log-sum-exp's tree.
struct TileNodes {
  LseNode raw;
  LseNode tempered;  // at the row's own temperature, if asked for
};
static_assert(sizeof(TileNodes) == kTileNodesBytes && sizeof(StoredBest) == kBestBytes);

// The log-sum-exp of row i, by each warp on its own: 32 tiles make five levels.
static __device__ float lse_of_row(const HeadLaunch& c, int64_t i, LseNode TileNodes::* node) {
  const TileNodes* tiles = c.nodes + i * c.plan.num_tiles;
  const int64_t first = c.plan.first_tile, last = first + c.plan.num_tiles;
  LseCarry carry;
  for (int64_t group = first / kWarpSize; group * kWarpSize < last; ++group) {
    const int64_t tile = group * kWarpSize + lane_index();
    const bool is_tile = tile >= first && tile < last;
    const LseNode own = is_tile ? tiles[tile - first].*node : LseNode{kMinusInf, 0.0f};
    carry.add(group, merge_lse_of_warp(own));
  }
  return lse_of(carry.total());
}

static __device__ float tempered_lse_of_row(const HeadLaunch& c, int64_t i, float lse) {
  return c.rows[i].has_tempered ? lse_of_row(c, i, &TileNodes::tempered) : lse;
}

// The best candidate of row i, by each warp on its own.
static __device__ Best best_of_row(const HeadLaunch& c, int64_t i) {
  const StoredBest* bests = c.bests + i * c.plan.num_groups;
  Best best;
  for (int64_t group = lane_index(); group < c.plan.num_groups; group += kWarpSize) {
    best.offer(bests[group]);
  }
  return best_of_warp(best);
}

// The 64 best keys of row i, by the CTA, into keys[KeptStorage::kListKeys].
static __device__ void keys_of_row(const HeadLaunch& c, int64_t i, uint64_t* keys) {
  merge_keys(c.keys + i * c.plan.num_groups * WarpKeys::kCount, c.plan.num_groups, keys);
}

}  // namespace dflash
