// What verify_gemm makes of the sums of a tile: act(sum + bias + addend) + residual.
#pragma once

#include "common/expf.h"
#include "device/elements.cuh"
#include "gemm/cuda/layout.h"

namespace dflash {

__device__ inline float silu(float x) { return x / (1.0f + exp_f32(-x)); }

__device__ inline float add_terms(const VerifyGemmParams& p, int64_t token, int64_t row,
                                  float sum) {
  if (p.bias) sum += load_element(p.bias, 0, row);
  if (p.addend) sum += load_element(p.addend, token, row);
  return sum;
}

// Tokens and weight rows of a tile; the first of each.
struct SumTile {
  int tokens;
  int weight_rows;
  int64_t first_token;
  int64_t first_row;
};

// Writes the outputs first, first + step, .. of a tile. sum_at(token, row): both from the tile's.
template <class SumAt>
__device__ void finish(const VerifyGemmParams& p, const SumTile& tile, int64_t num_tokens,
                       int first, int step, SumAt sum_at) {
  const bool is_pair = p.act == Activation::kSiluMul;
  constexpr int kHalf = kTileRows / 2;
  const int num_cols = is_pair ? tile.weight_rows / 2 : tile.weight_rows;
  const int64_t first_col = is_pair ? tile.first_row / 2 : tile.first_row;
  for (int i = first; i < tile.tokens * num_cols; i += step) {
    const int in_token = i / num_cols, in_col = i % num_cols;
    const int64_t token = tile.first_token + in_token, col = first_col + in_col;
    if (token >= num_tokens || col >= p.num_outputs) continue;
    const int in_row = is_pair ? in_col / kHalf * kTileRows + in_col % kHalf : in_col;
    float y = add_terms(p, token, col, sum_at(in_token, in_row));
    if (is_pair) {
      const float up = sum_at(in_token, in_row + kHalf);
      y = silu(y) * add_terms(p, token, p.num_outputs + col, up);
    } else if (p.act == Activation::kSilu) {
      y = silu(y);
    }
    if (p.residual) y += load_element(p.residual, token, col);
    store_element(p.out, token, col, y);
  }
}

}  // namespace dflash
