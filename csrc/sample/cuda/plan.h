// Host arithmetic of the sample ops on CUDA: sizes -> grids and workspace.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dflash {

// sample_logits: a thread has one block of the log-sum-exp, 64 ids; a CTA a tile of such blocks,
// which is an aligned part of the tree, so that any vocabulary is cut at the same ids.
inline constexpr int kScanBlock = 128;
inline constexpr int64_t kTileIds = 64 * kScanBlock;
inline constexpr int kFinishBlock = 256;
inline constexpr int64_t kTileResultBytes = 32;
inline constexpr int64_t kTileKeysBytes = 64 * 8;

struct SamplePlan {
  int64_t first_tile;
  int64_t num_tiles;
  int64_t keys_offset;  // bytes
  int64_t workspace_bytes;
};

constexpr SamplePlan plan_sample(int64_t num_rows, int64_t vocab_start, int64_t num_columns) {
  SamplePlan plan{};
  plan.first_tile = vocab_start / kTileIds;
  const int64_t last = vocab_start + std::max<int64_t>(1, num_columns);
  plan.num_tiles = (last + kTileIds - 1) / kTileIds - plan.first_tile;
  plan.keys_offset = num_rows * plan.num_tiles * kTileResultBytes;
  plan.workspace_bytes = plan.keys_offset + num_rows * plan.num_tiles * kTileKeysBytes;
  return plan;
}

// sample_candidates: one warp per CTA, for its list takes 12 KB of shared memory.
inline constexpr int kCandidatesBlock = 32;

}  // namespace dflash
