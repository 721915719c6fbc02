// One element of a tensor whose type is known at run time. The branch goes the same way for every
// thread.
#pragma once

#include "common/views.h"

namespace dflash {

__device__ inline float load_element(const ArrayView<2>& view, int64_t row, int64_t col) {
  const int64_t i = row * view.strides[0] + col * view.strides[1];
  switch (view.dtype) {
    case DType::kBF16: return to_float(static_cast<const BF16*>(view.data)[i]);
    case DType::kF16: return to_float(static_cast<const F16*>(view.data)[i]);
    default: return static_cast<const float*>(view.data)[i];
  }
}

__device__ inline void store_element(const ArrayOut<2>& out, int64_t row, int64_t col,
                                     float value) {
  const int64_t i = row * out.strides[0] + col * out.strides[1];
  switch (out.dtype) {
    case DType::kBF16: static_cast<BF16*>(out.data)[i] = from_float<BF16>(value); break;
    case DType::kF16: static_cast<F16*>(out.data)[i] = from_float<F16>(value); break;
    default: static_cast<float*>(out.data)[i] = value;
  }
}

}  // namespace dflash
