// The loops over a row, written for the compiler to vectorise. Only files for one instruction set
// include this: everything is in an unnamed namespace, so that no copy is shared between them.
#pragma once

#include "common/cpu/fp32_row.h"
#include "common/dispatch.h"
#include "common/quantise.h"
#include "common/rms.h"

namespace dflash {
namespace {

// Calls f(T{}) for the float type.
template <class F>
void with_float(DType dtype, const F& f) {
  (void)with_dtype<float, BF16, F16>(dtype, [&](auto type) { f(typename decltype(type)::type{}); });
}

void load(const void* from, DType dtype, int64_t count, float* row) {
  with_float(dtype, [&](auto zero) {
    const auto* elements = static_cast<const decltype(zero)*>(from);
    for (int64_t i = 0; i < count; ++i) row[i] = to_float(elements[i]);
  });
}

void add(const void* from, DType dtype, int64_t count, float* row) {
  with_float(dtype, [&](auto zero) {
    const auto* elements = static_cast<const decltype(zero)*>(from);
    for (int64_t i = 0; i < count; ++i) row[i] += to_float(elements[i]);
  });
}

void round(DType dtype, int64_t count, float* row) {
  with_float(dtype, [&](auto zero) {
    for (int64_t i = 0; i < count; ++i) row[i] = to_float(from_float<decltype(zero)>(row[i]));
  });
}

void store(const float* row, int64_t count, DType dtype, void* to, int64_t stride) {
  with_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = static_cast<T*>(to);
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) out[i] = from_float<T>(row[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i * stride] = from_float<T>(row[i]);
    }
  });
}

void norm(const float* weight, float eps, DType dtype, int64_t count, float* row) {
  const float scale = rms_scale(row, count, eps);
  with_float(dtype, [&](auto zero) {
    for (int64_t i = 0; i < count; ++i) {
      row[i] = to_float(from_float<decltype(zero)>(rms_apply(row[i], scale, weight[i])));
    }
  });
}

void rotate_pairs(const float* cos_sin, int64_t num_pairs, int64_t pair_stride, float* first,
                  float* second) {
  for (int64_t i = 0; i < num_pairs; ++i) {
    const float x = first[i * pair_stride], y = second[i * pair_stride];
    const float cosine = cos_sin[i], sine = cos_sin[num_pairs + i];
    first[i * pair_stride] = x * cosine - y * sine;
    second[i * pair_stride] = y * cosine + x * sine;
  }
}

void rotate(const float* cos_sin, int64_t num_pairs, bool is_neox, float* row) {
  if (is_neox) {
    rotate_pairs(cos_sin, num_pairs, 1, row, row + num_pairs);
  } else {
    rotate_pairs(cos_sin, num_pairs, 2, row, row + 1);
  }
}

float largest_magnitude(const float* row, int64_t count) {
  int32_t largest = 0;  // magnitudes order as their bits do
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(row[i]) & 0x7fffffff;
    const int32_t finite = magnitude < 0x7f800000 ? magnitude : 0;
    largest = finite > largest ? finite : largest;
  }
  return std::bit_cast<float>(largest);
}

void quantise_row(const float* row, int64_t count, float scale, DType dtype, void* to) {
  (void)with_dtype<F8E4M3, F8E5M2, int8_t>(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* out = static_cast<T*>(to);
    for (int64_t i = 0; i < count; ++i) out[i] = quantise<T>(row[i], scale);
  });
}

constexpr RowKernels row_loops() {
  return {load, add, round, store, norm, rotate, largest_magnitude, quantise_row};
}

}  // namespace
}  // namespace dflash
