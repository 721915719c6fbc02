// Host arithmetic of the lm_head ops on CUDA: sizes -> shape of a CTA, grid, workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm/cuda/plan.h"
#include "gemm/cuda/plan_sm90.h"
#include "gemm/cuda/quant_plan.h"
#include "lm_head/params.h"
#include "sample/cuda/plan.h"

namespace dflash {

// The first is for up to 32 rows, the last for a quantised head: the same tile by twice the warps,
// as they decode. A CTA has a thread for each of its rows' blocks of 64 ids, and a whole number of
// such blocks, so that its part of the log-sum-exp is one node of the tree.
inline constexpr GemmShape kHeadShapes[] = {{4, 4, 4, 1, 4}, {2, 8, 4, 1, 4}, {2, 4, 8, 1, 4}};
inline constexpr int kNumHeadShapes = 2, kQuantHeadShape = 2;
inline constexpr int kHeadThreads = 128;  // of those that sum blocks
static_assert(std::ranges::all_of(kHeadShapes, [](const GemmShape& shape) {
  return shape.threads() >= kHeadThreads && shape.weight_rows() % 64 == 0 && shape.warps_k == 1 &&
         shape.tokens() * shape.weight_rows() / 64 == kHeadThreads;
}));
static_assert(plan_quant_stages(kHeadShapes[kQuantHeadShape], kLargestQuant, 1, 32).count >= 2);

// The same tiles on sm_90a, where sums have a place of their own and a CTA fills an SM.
inline constexpr WgmmaShape kHeadWgmmaShapes[] = {{4, 32, 4, 1}, {2, 64, 6, 1}};
static_assert(std::equal(std::begin(kHeadWgmmaShapes), std::end(kHeadWgmmaShapes), kHeadShapes,
                         [](const WgmmaShape& a, const GemmShape& b) {
                           return a.weight_rows() == b.weight_rows() && a.tokens == b.tokens() &&
                                  a.weight_bytes_in_flight() >= 96 * 1024;
                         }));

// The ids of given rows are read as so many rows of a weight.
inline constexpr GemmShape kPickShape = {1, 1, 1, 4, 12};
inline constexpr WgmmaShape kPickWgmmaShape = kWgmmaShapes[0];

// Two for each SM of the larger GPUs. More ids are taken in turn, so that what a CTA leaves is
// little against what it reads. Who takes which ids changes no bit.
inline constexpr int64_t kHeadCtas = 264;

// Of what the pass leaves in the workspace.
inline constexpr int64_t kHeadRowBytes = 128;
inline constexpr int64_t kTileNodesBytes = 16;
inline constexpr int64_t kBestBytes = 16;
inline constexpr int64_t kPartKeysBytes = 64 * 8;

struct HeadPlan {
  int shape;           // of kHeadShapes
  int64_t tile_rows;   // of a CTA, at most
  int64_t row_tiles;   // next to each other in the grid: they share the weight in L2
  int64_t num_groups;  // CTAs of a row tile: group g takes tiles g, g + num_groups, ..
  int64_t first_tile;  // of weight_rows() ids, from id 0
  int64_t num_tiles;
  int64_t x_pitch;           // elements between rows of x in the workspace
  QuantRowsPlan quant_rows;  // of x for a quantised head
  int64_t nodes_offset;      // bytes
  int64_t bests_offset;
  int64_t keys_offset;
  int64_t given_offset;
  int64_t flags_offset;
  int64_t rows_offset;
  int64_t workspace_bytes;
};

// num_ids: K of lm_head_gather.
constexpr HeadPlan plan_head(const HeadParams& p, int64_t num_ids = 0) {
  const int64_t num_rows = p.options.num_rows;
  const IdRange ids = id_range(p.options);
  HeadPlan plan{};
  plan.quant_rows = plan_quant_rows(p.weight, num_rows);
  const int planes = p.weight.quant ? plan.quant_rows.num_planes : 1;
  plan.shape = p.weight.quant ? kQuantHeadShape : num_rows <= kHeadShapes[0].tokens() ? 0 : 1;
  const GemmShape& shape = kHeadShapes[plan.shape];
  const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  plan.tile_rows = shape.tokens() / planes;
  plan.row_tiles = (num_rows + plan.tile_rows - 1) / plan.tile_rows;
  plan.first_tile = ids.first / shape.weight_rows();
  const int64_t last = std::max(ids.first + 1, ids.last);
  plan.num_tiles = up(last, shape.weight_rows()) / shape.weight_rows() - plan.first_tile;
  plan.num_groups =
      std::clamp<int64_t>(kHeadCtas / std::max<int64_t>(plan.row_tiles, 1), 1, plan.num_tiles);
  plan.x_pitch = up(p.weight.depth, 8);  // rows start at multiples of 16 bytes
  const int64_t x_bytes = num_rows * plan.x_pitch * float_bytes(p.h.dtype);
  plan.nodes_offset = up(p.weight.quant ? plan.quant_rows.workspace_bytes : x_bytes, 16);
  plan.bests_offset = plan.nodes_offset + num_rows * plan.num_tiles * kTileNodesBytes;
  plan.keys_offset = plan.bests_offset + num_rows * plan.num_groups * kBestBytes;
  plan.given_offset = plan.keys_offset + num_rows * plan.num_groups * kPartKeysBytes;
  plan.flags_offset = plan.given_offset + num_rows * num_ids * 8;
  plan.rows_offset = plan.flags_offset + up(num_rows * 4, 16);
  plan.workspace_bytes = plan.rows_offset + num_rows * kHeadRowBytes;
  return plan;
}

}  // namespace dflash
