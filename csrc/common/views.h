// Tensors as kernels see them: used in place, with any stride, no torch.
//
// An index is int32 or int64. The branch on `is_int64` goes the same way for every thread and costs
// less than a copy, or than one instantiation per combination of types.
// constexpr lets host and device code call the same function (nvcc: --expt-relaxed-constexpr).
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace dflash {

// A floating-point or quantised tensor. Strides are in elements; an absent argument has no data.
template <int kDims>
struct ArrayView {
  const void* data;
  DType dtype;
  int64_t strides[kDims];

  constexpr explicit operator bool() const { return data != nullptr; }
  template <class T>
  constexpr const T* at(int64_t i) const {  // start of the i-th slice of the first dimension
    return static_cast<const T*>(data) + i * strides[0];
  }
};

template <int kDims>
struct ArrayOut {
  void* data;
  DType dtype;
  int64_t strides[kDims];

  constexpr explicit operator bool() const { return data != nullptr; }
  template <class T>
  constexpr T* at(int64_t i) const {
    return static_cast<T*>(data) + i * strides[0];
  }
};

struct IndexView {
  const void* data;  // [n]; null: the argument is absent
  int64_t stride;    // elements
  bool is_int64;

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr int64_t operator[](int64_t i) const {
    return is_int64 ? static_cast<const int64_t*>(data)[i * stride]
                    : static_cast<const int32_t*>(data)[i * stride];
  }
};

struct IndexTable {
  const void* data;  // [num_rows, num_cols]; null: the argument is absent
  int64_t row_stride;
  int64_t col_stride;
  int64_t num_rows;
  int64_t num_cols;
  bool is_int64;

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr int64_t operator()(int64_t row, int64_t col) const {
    const int64_t i = row * row_stride + col * col_stride;
    return is_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

struct IndexOut {
  void* data;  // [num_rows, num_cols], or [num_rows]
  int64_t row_stride;
  int64_t col_stride;
  bool is_int64;

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr int64_t get(int64_t row, int64_t col = 0) const {  // what a set has left
    const int64_t i = row * row_stride + col * col_stride;
    return is_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  constexpr void set(int64_t row, int64_t value) const { set(row, 0, value); }
  constexpr void set(int64_t row, int64_t col, int64_t value) const {
    const int64_t i = row * row_stride + col * col_stride;
    if (is_int64) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
  }
};

// An index tensor that is read and then overwritten in place.
struct IndexState {
  IndexView now;
  IndexOut next;
};

// Bits of a `status` tensor: what was wrong with a request's data.
enum Status : int32_t {
  kNoFiniteLogit = 1 << 0,
  kBadDraftId = 1 << 1,
  kBadQ = 1 << 2,
  kBadTree = 1 << 3,
  kOutOfRange = 1 << 4,
  kBoundTooSmall = 1 << 5,
};

struct StatusView {
  int32_t* data;  // [n]; null: the argument is absent
  int64_t stride;

  constexpr void add(int64_t i, int32_t bits) const {
    if (data != nullptr) data[i * stride] |= bits;
  }
};

struct RowRange {
  int64_t first;
  int64_t count;
  bool in_range;
};

// Rows cu[b] .. cu[b + 1]; none of them unless both lie, in order, within 0 .. num_rows.
constexpr RowRange row_range(const IndexView& cu, int64_t b, int64_t num_rows) {
  const int64_t first = cu[b], last = cu[b + 1];
  if (first < 0 || last < first || num_rows < last) return {0, 0, false};
  return {first, last - first, true};
}

// The request whose rows hold `row`; -1: none does. Its own range is what counts, not its
// neighbours': the search finds it at once unless some other range is broken.
constexpr int64_t request_of_row(const IndexView& cu, int64_t num_requests, int64_t row,
                                 int64_t num_rows) {
  const auto holds = [&](int64_t b) {
    const RowRange rows = row_range(cu, b, num_rows);
    return rows.first <= row && row < rows.first + rows.count;
  };
  int64_t low = 0, high = num_requests;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (cu[middle] <= row ? low : high) = middle;
  }
  if (low < high && holds(low)) return low;
  for (int64_t b = 0; b < num_requests; ++b) {
    if (holds(b)) return b;
  }
  return -1;
}

}  // namespace dflash
