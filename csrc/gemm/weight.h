// Weights as arguments: the checks that all ops with a plain or packed weight share.
#pragma once

#include "common/check.h"
#include "gemm/params.h"

namespace dflash {

inline void check_contiguous(const Checks& checks, const char* name, const Tensor& t) {
  if (!t.is_contiguous()) {
    checks.fail(name, " must be contiguous, got strides ", shape_name(t.strides()));
  }
}

inline void check_pair(const Checks& checks, const char* name, const GemmWeight& w) {
  if (w.is_pair && w.num_rows % 2) {
    checks.fail(name, " must have an even number of rows, got ", w.num_rows);
  }
}

// The weight of a product with rows of `depth` elements of `dtype`. num_rows: how many it has, or
// -1 for as many as it holds, padding included where it is packed.
inline GemmWeight gemm_weight(const Checks& checks, const Tensor& weight, ScalarType dtype,
                              int64_t depth, int64_t num_rows, bool is_pair,
                              const char* name = "weight") {
  constexpr int64_t kBlock = GemmWeight::kBlock;
  GemmWeight w{nullptr, dtype_code(dtype), num_rows, depth, 0, weight.dim() != 2, is_pair};
  if (!w.is_packed) {
    checks.tensor(name, weight, {dtype}, "[N, K]", {num_rows, depth});
    checks.last_contiguous(name, weight);
    w.num_rows = weight.size(0);
    w.row_stride = weight.strides()[0];
  } else {
    const int64_t blocks = num_rows < 0 ? -1 : w.num_blocks();
    if (dtype == ScalarType::Float) {
      checks.tensor(name, weight, {dtype}, "[N, K] or packed [blocks, K, 32]",
                    {blocks, depth, kBlock});
    } else {
      checks.tensor(name, weight, {dtype}, "[N, K] or packed [blocks, K / 2, 32, 2]",
                    {blocks, (depth + 1) / 2, kBlock, 2});
    }
    check_contiguous(checks, name, weight);
    if (num_rows < 0) w.num_rows = weight.size(0) * kBlock;
  }
  check_pair(checks, name, w);
  w.data = weight.const_data_ptr();
  return w;
}

}  // namespace dflash
