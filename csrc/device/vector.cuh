// Eight elements of a row at a time, in fp32: one or two 16-byte accesses where the address allows,
// else one after the other. Where the row ends earlier, the rest is 0 and is not touched.
#pragma once

#include <cstdint>

#include "common/dispatch.h"
#include "common/views.h"

namespace dflash {

inline constexpr int kVector = 8;

template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T elements[kSize];
};

template <class T>
static __device__ bool is_vector(const T* x, int64_t stride, int64_t count) {
  return stride == 1 && count >= kVector && reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

template <class T>
static __device__ void load_vector(const T* x, int64_t stride, int64_t count,
                                   float (&values)[kVector]) {
  if (!is_vector(x, stride, count)) {
    for (int j = 0; j < kVector; ++j) values[j] = j < count ? to_float(x[j * stride]) : 0.0f;
    return;
  }
  for (int j = 0; j < kVector; j += Pack<T>::kSize) {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(x + j);
    for (int k = 0; k < Pack<T>::kSize; ++k) values[j + k] = to_float(pack.elements[k]);
  }
}

template <class T>
static __device__ void store_vector(T* out, int64_t stride, int64_t count,
                                    const float (&values)[kVector]) {
  if (!is_vector(out, stride, count)) {
    for (int j = 0; j < kVector && j < count; ++j) out[j * stride] = from_float<T>(values[j]);
    return;
  }
  for (int j = 0; j < kVector; j += Pack<T>::kSize) {
    Pack<T> pack;
    for (int k = 0; k < Pack<T>::kSize; ++k) pack.elements[k] = from_float<T>(values[j + k]);
    *reinterpret_cast<Pack<T>*>(out + j) = pack;
  }
}

// The same for a type known at run time. The branch goes the same way for every thread.
static __device__ void load_vector(const void* x, DType dtype, int64_t first, int64_t count,
                                   float (&values)[kVector]) {
  (void)with_dtype<float, BF16, F16>(dtype, [&]<class T>(std::type_identity<T>) {
    load_vector(static_cast<const T*>(x) + first, 1, count, values);
  });
}

}  // namespace dflash
