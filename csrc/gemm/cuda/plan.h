// Host arithmetic of verify_gemm on CUDA: sizes -> shape of a CTA, grid, shared memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "gemm/cuda/layout.h"

namespace dflash {

// L1: k is cut in this many splits, by (K, dtype) alone. Each is summed from zero, and their sums
// are added in ascending order, whether several warps own them or one does.
inline constexpr int kGemmSplits = 4;

constexpr int64_t split_begin(int64_t num_chunks, int split) {
  return num_chunks * split / kGemmSplits;
}

// What a CTA computes at a time: 16 * frags * warps_n weight rows for 8 * token_tiles tokens. Of
// its warps, warps_n stand side by side over the weight rows and warps_k share the splits of k.
struct GemmShape {
  int frags;        // blocks of 16 weight rows per warp
  int token_tiles;  // of 8 tokens
  int warps_n;
  int warps_k;
  int stages;  // of the pipeline: chunks that are read ahead, plus the one in use

  constexpr int weight_rows() const { return kTileRows * frags * warps_n; }
  constexpr int tokens() const { return 8 * token_tiles; }
  constexpr int threads() const { return 32 * warps_n * warps_k; }

  // Shared memory: the stages, in units of 16 bytes; then, in their place, a plane of sums per
  // warps_k, [tokens][weight_rows + 4]: with this padding a warp stores without bank conflicts.
  constexpr int weight_vecs() const { return 64 * frags; }       // of a warp, a stage
  constexpr int token_vecs() const { return 32 * token_tiles; }  // of warps_n warps, a stage
  constexpr int stage_vecs() const { return warps_k * (warps_n * weight_vecs() + token_vecs()); }
  constexpr int sum_stride() const { return weight_rows() + 4; }
  constexpr int plane_floats() const { return tokens() * sum_stride(); }
  constexpr int smem_bytes() const {
    return std::max(16 * stages * stage_vecs(), 4 * warps_k * plane_floats());
  }
  constexpr int weight_bytes_in_flight() const {
    return 16 * (stages - 1) * warps_k * warps_n * weight_vecs();
  }
};

// Narrow for small weights, so that there are CTAs for many SMs. The last two are for more than 32
// tokens: the wide one reads each operand least often, the other makes more CTAs.
inline constexpr GemmShape kGemmShapes[] = {
    {1, 1, 1, 4, 13}, {1, 2, 1, 4, 12}, {1, 4, 1, 4, 8}, {2, 1, 1, 4, 8},
    {2, 2, 1, 4, 8},  {2, 4, 1, 4, 6},  {2, 8, 2, 4, 3}, {2, 8, 8, 1, 4},
};
inline constexpr int kNumGemmShapes = std::size(kGemmShapes);

// Every GPU from sm_80 on gives a CTA 99 KB; a memory of 2 TB/s and 500 ns needs 10 KB in flight on
// each of 100 SMs, and several times that to be busy all the time.
static_assert(std::ranges::all_of(kGemmShapes, [](const GemmShape& shape) {
  return shape.smem_bytes() <= 99 * 1024 && shape.weight_bytes_in_flight() >= 28 * 1024 &&
         kGemmSplits % shape.warps_k == 0;
}));

// Rows of the weight in whole tiles of 16.
constexpr int64_t rows_of_tiles(const VerifyGemmParams& p) {
  const int64_t width = p.act == Activation::kSiluMul ? kTileRows / 2 : kTileRows;
  return (p.num_outputs + width - 1) / width * kTileRows;
}

struct GemmPlan {
  int shape;          // of kGemmShapes
  int64_t row_tiles;  // tiles of tokens, next to each other in the grid: they share the weight
  int64_t num_ctas;
};

// Rows of fp32, which has no mma, take three of the shapes: they are for tests and small weights.
using Fp32GemmShapes = std::integer_sequence<int, 0, 2, 6>;

constexpr GemmPlan plan_verify_gemm_cuda(int64_t num_tokens, int64_t num_weight_rows,
                                         bool is_fp32 = false) {
  constexpr int64_t kWideFrom = 4096;  // weight rows
  constexpr int64_t kManyCtas = 128;
  const auto plan = [=](int i) {
    const GemmShape& shape = kGemmShapes[i];
    const int64_t row_tiles = (num_tokens + shape.tokens() - 1) / shape.tokens();
    const int64_t blocks = (num_weight_rows + shape.weight_rows() - 1) / shape.weight_rows();
    return GemmPlan{i, row_tiles, row_tiles * blocks};
  };
  if (is_fp32) return plan(num_tokens <= 8 ? 0 : num_tokens <= 32 ? 2 : 6);
  if (num_tokens <= 32) {
    return plan((num_weight_rows >= kWideFrom ? 3 : 0) +
                (num_tokens <= 8 ? 0 : (num_tokens <= 16 ? 1 : 2)));
  }
  const GemmPlan wide = plan(7);
  return wide.num_ctas >= kManyCtas ? wide : plan(6);
}
static_assert(plan_verify_gemm_cuda(1, 4096).num_ctas == 128);
static_assert(plan_verify_gemm_cuda(64, 4096).num_ctas == 64);
static_assert(plan_verify_gemm_cuda(2048, 4096).num_ctas == 512);

// Packing and unpacking: beyond 8192 CTAs a thread takes several elements.
inline constexpr int kPackThreads = 256;
constexpr int64_t pack_ctas(int64_t count) {
  return std::min<int64_t>((count + kPackThreads - 1) / kPackThreads, 8192);
}

}  // namespace dflash
