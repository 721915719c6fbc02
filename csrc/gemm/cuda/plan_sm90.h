// Host arithmetic of verify_gemm's body for sm_90a: sizes -> shape of a CTA, cluster, grid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "gemm/cuda/layout.h"

namespace dflash {

// k runs in steps of two chunks, 64 elements; a row of one is 128 bytes.
inline constexpr int kStepChunks = 2;

constexpr int64_t num_steps(const WeightLayout& layout) {
  return (layout.num_chunks + kStepChunks - 1) / kStepChunks;
}

// L1: k is cut in this many splits of whole steps, by K alone. Each is summed from zero, and their
// sums are added in ascending order, whether the CTAs of a cluster own them or one CTA does.
inline constexpr int kWgmmaSplits = 4;

constexpr int64_t split_step(int64_t num_steps, int split) {
  return num_steps * split / kWgmmaSplits;
}

inline constexpr int kWgmmaRows = 64;  // the m of wgmma

// What a CTA computes at a time: 64 * blocks weight rows for `tokens` tokens, the n of wgmma. One
// group of four warps brings the operands, the other multiplies.
struct WgmmaShape {
  int blocks;
  int tokens;
  int stages;
  int ctas_per_sm;

  static constexpr int kGroup = 128;  // threads
  static constexpr int kThreads = 2 * kGroup;

  constexpr int weight_rows() const { return kWgmmaRows * blocks; }
  constexpr int weight_bytes() const { return weight_rows() * kStepChunks * kChunkRowBytes; }
  constexpr int token_bytes() const { return tokens * kStepChunks * kChunkRowBytes; }
  constexpr int stage_bytes() const { return weight_bytes() + token_bytes(); }
  constexpr int weight_bytes_in_flight() const { return stages * weight_bytes(); }
  // A plane of sums, [tokens][weight_rows + 4]: a warp stores without bank conflicts.
  constexpr int sum_stride() const { return weight_rows() + 4; }
  constexpr int plane_floats() const { return tokens * sum_stride(); }
  constexpr int smem_bytes() const {
    return stages * stage_bytes() + 4 * plane_floats() + 2 * 8 * stages;
  }
};

inline constexpr WgmmaShape kWgmmaShapes[] = {
    {1, 8, 12, 2}, {2, 32, 4, 2}, {2, 64, 3, 2}, {2, 128, 4, 1}};
inline constexpr int kNumWgmmaShapes = std::size(kWgmmaShapes);

// An SM has 228 KB and takes 1 KB of each CTA. 4.8 TB/s and 800 ns of latency under load need 29 KB
// in flight on each of 132 SMs.
static_assert(std::ranges::all_of(kWgmmaShapes, [](const WgmmaShape& shape) {
  return shape.ctas_per_sm * (shape.smem_bytes() + 1024) <= 228 * 1024 &&
         shape.ctas_per_sm * shape.weight_bytes_in_flight() >= 64 * 1024;
}));

struct WgmmaPlan {
  int shape;          // of kWgmmaShapes
  int cluster;        // CTAs that share the splits of k: all four, or one
  int64_t row_tiles;  // tiles of tokens, next to each other in the grid: they share the weight
  int64_t num_ctas;
};

constexpr WgmmaPlan plan_verify_gemm_sm90(int64_t num_tokens, int64_t num_weight_rows) {
  constexpr int64_t kManyCtas = 132;  // beyond, whole CTAs are busy enough
  const int shape = num_tokens <= 8 ? 0 : num_tokens <= 32 ? 1 : num_tokens <= 64 ? 2 : 3;
  const int tokens = kWgmmaShapes[shape].tokens, rows = kWgmmaShapes[shape].weight_rows();
  const int64_t row_tiles = (num_tokens + tokens - 1) / tokens;
  const int64_t tiles = row_tiles * ((num_weight_rows + rows - 1) / rows);
  const int cluster = tiles < kManyCtas ? kWgmmaSplits : 1;
  return {shape, cluster, row_tiles, tiles * cluster};
}
static_assert(plan_verify_gemm_sm90(1, 4096).num_ctas == 256);
static_assert(plan_verify_gemm_sm90(64, 24576).num_ctas == 192);
static_assert(plan_verify_gemm_sm90(2048, 4096).num_ctas == 512);

}  // namespace dflash
