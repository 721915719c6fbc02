// Rows of x as the product with a quantised weight reads them: bf16, whatever they were.
//
// A number is the exact sum of as many bf16 as its type has planes: fp16 two, fp32 three, each the
// leading bits of what is left. Rows rounded to int8 are their codes, which bf16 holds exactly,
// with a scale for every 32 k.
#pragma once

#include "gemm/cuda/quant_layout.h"

namespace dflash {

inline constexpr int kRowScaleDepth = 32;  // k that share a scale of a row
inline constexpr int kChunkRowScales = 4;  // per chunk, of which codes of 8 bits use two

struct QuantRows {
  const BF16* x;  // [num_planes, M, K], rows `stride` apart
  int64_t stride;
  int64_t plane_stride;
  int32_t num_planes;
  const float* scales;  // [M, num_chunks, 4]?
  int64_t scale_stride;
};

constexpr int num_planes(DType dtype) {
  return dtype == DType::kBF16 ? 1 : dtype == DType::kF16 ? 2 : 3;
}

// Where rows that are worked out stand in a workspace.
struct QuantRowsPlan {
  int32_t num_planes;
  int64_t pitch;  // rows start at multiples of 16 bytes
  int64_t plane_stride;
  int64_t scale_stride;
  int64_t scales_offset;  // bytes
  int64_t workspace_bytes;
};

constexpr QuantRowsPlan plan_quant_rows(const GemmWeight& w, int64_t num_rows) {
  constexpr int64_t kPiece = 8;
  QuantRowsPlan plan{};
  plan.num_planes = w.has_int8_rows ? 1 : num_planes(w.dtype);
  plan.pitch = (w.depth + kPiece - 1) / kPiece * kPiece;
  plan.plane_stride = num_rows * plan.pitch;
  plan.scales_offset = plan.num_planes * plan.plane_stride * int64_t{sizeof(BF16)};
  plan.scale_stride = w.has_int8_rows ? QuantLayout(w).num_chunks() * kChunkRowScales : 0;
  plan.workspace_bytes = plan.scales_offset + num_rows * plan.scale_stride * int64_t{sizeof(float)};
  return plan;
}

// workspace: as planned, 16-byte aligned.
constexpr QuantRows rows_in(void* workspace, const QuantRowsPlan& plan) {
  char* bytes = static_cast<char*>(workspace);
  void* scales = plan.scale_stride > 0 ? bytes + plan.scales_offset : nullptr;
  return {static_cast<const BF16*>(workspace), plan.pitch,       plan.plane_stride, plan.num_planes,
          static_cast<const float*>(scales),   plan.scale_stride};
}

struct QuantRowsParams {
  ArrayView<2> x;            // [M, K]
  ArrayView<1> norm_weight;  // [K]?
  float eps;
  int64_t num_rows;
  int64_t depth;
  int64_t chunk_depth;
  QuantRowsPlan plan;
  void* workspace;
};

}  // namespace dflash
