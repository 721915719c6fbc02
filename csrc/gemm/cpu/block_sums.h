// GemmKernels::block_sums: which main loop a weight takes. Included like tile.h.
#pragma once

#include "gemm/cpu/int8_tile.h"

namespace dflash {
namespace {

template <class V>
void block_sums(const GemmWeight& w, int64_t block, const PackedRows& rows, int64_t first_row,
                int64_t num_rows, float* sums) {
  if (w.depth == 0 || w.quant) std::fill_n(sums, num_rows * kBlock, 0.0f);
  const FlushDenormals flush;
  if (w.has_int8_rows) {
    return w.quant.codes == Codes::kInt4
               ? int8_sums<V, Codes::kInt4>(w, block, rows, first_row, num_rows, sums)
               : int8_sums<V, Codes::kInt8>(w, block, rows, first_row, num_rows, sums);
  }
  switch (w.quant.codes) {
    case Codes::kInt4:
      return quant_sums_of<V, Codes::kInt4>(w, block, rows, first_row, num_rows, sums);
    case Codes::kInt8:
      return quant_sums_of<V, Codes::kInt8>(w, block, rows, first_row, num_rows, sums);
    case Codes::kF8E4M3:
      return quant_sums_of<V, Codes::kF8E4M3>(w, block, rows, first_row, num_rows, sums);
    case Codes::kNone: break;
  }
  switch (w.dtype) {
    case DType::kBF16:
      return typed_sums<V, DType::kBF16>(w, block, rows, first_row, num_rows, sums);
    case DType::kF16: return typed_sums<V, DType::kF16>(w, block, rows, first_row, num_rows, sums);
    default: return typed_sums<V, DType::kF32>(w, block, rows, first_row, num_rows, sums);
  }
}

}  // namespace
}  // namespace dflash
