// Host arithmetic of products with quantised weights on CUDA: sizes -> shape of a CTA, stages,
// grid.
#pragma once

#include "gemm/cuda/plan.h"
#include "gemm/cuda/quant_rows.h"

namespace dflash {

// The first is for few tokens or few weight rows, where the warps share the splits of k; the second
// reads the tokens least often. A shape's stages are those of a plain product: that memory holds as
// many of the smaller stages here as fit.
inline constexpr GemmShape kQuantShapes[] = {{2, 2, 1, 4, 8}, {2, 4, 8, 1, 5}};
inline constexpr int kNumQuantShapes = std::size(kQuantShapes);

// What a CTA keeps of a call in shared memory.
struct QuantStages {
  int32_t count;   // chunks that are read ahead, plus the one in use
  int32_t tokens;  // of a CTA, at most
};

// Of a warp, in bytes: a chunk of 64 bytes a row, and a word for each row, group and line of
// scales.
constexpr int quant_scale_lines(const QuantFormat& quant) {
  const int chunk_depth = QuantLayout::kChunkWords * 32 / quant.bits();
  return std::max(1, chunk_depth / quant.group) * (quant.offset == Offset::kNone ? 1 : 2);
}
constexpr int quant_weight_bytes(const QuantFormat& quant, int frags) {
  return frags * kTileRows * (kChunkRowBytes + 4 * quant_scale_lines(quant));
}
// Of a row of x: a chunk of bf16, and its scales.
constexpr int quant_token_bytes(const QuantFormat& quant, bool has_scales) {
  const int chunk_depth = QuantLayout::kChunkWords * 32 / quant.bits();
  return chunk_depth * int{sizeof(BF16)} + (has_scales ? kChunkRowScales * int{sizeof(float)} : 0);
}
constexpr int quant_stage_bytes(const GemmShape& shape, const GemmWeight& w, int planes,
                                int tokens) {
  return shape.warps_k * (shape.warps_n * quant_weight_bytes(w.quant, shape.frags) +
                          planes * tokens * quant_token_bytes(w.quant, w.has_int8_rows));
}

constexpr QuantStages plan_quant_stages(const GemmShape& shape, const GemmWeight& w, int planes,
                                        int64_t num_tokens) {
  constexpr int kMost = 8;
  const int tokens = static_cast<int>(std::min<int64_t>(shape.tokens() / planes, num_tokens));
  const int fit = shape.smem_bytes() / quant_stage_bytes(shape, w, planes, tokens);
  return {std::min(fit, kMost), tokens};
}

struct QuantGemmPlan {
  int shape;  // of kQuantShapes
  QuantStages stages;
  int64_t row_tiles;  // tiles of tokens, next to each other in the grid: they share the weight
  int64_t num_ctas;
};

constexpr QuantGemmPlan plan_verify_gemm_quant(const GemmWeight& w, int planes, int64_t num_tokens,
                                               int64_t num_weight_rows) {
  constexpr int64_t kManyCtas = 96;
  const auto plan = [&](int i) {
    const GemmShape& shape = kQuantShapes[i];
    const QuantStages stages = plan_quant_stages(shape, w, planes, num_tokens);
    const int64_t row_tiles = (num_tokens + stages.tokens - 1) / stages.tokens;
    const int64_t blocks = (num_weight_rows + shape.weight_rows() - 1) / shape.weight_rows();
    return QuantGemmPlan{i, stages, row_tiles, row_tiles * blocks};
  };
  const QuantGemmPlan wide = plan(1);
  return num_tokens * planes > 8 && wide.num_ctas >= kManyCtas ? wide : plan(0);
}

// Every GPU from sm_80 on gives a CTA 99 KB. The largest stages: fp32 scales and zeros of every 32.
inline constexpr GemmWeight kLargestQuant{
    nullptr, DType::kF32, 0, 0, 0, true, false, {Codes::kInt4, Offset::kZeros, DType::kF32, 32}};
static_assert(std::ranges::all_of(kQuantShapes, [](const GemmShape& shape) {
  return shape.smem_bytes() <= 99 * 1024 &&
         plan_quant_stages(shape, kLargestQuant, 1, shape.tokens()).count >= 2;
}));

}  // namespace dflash
