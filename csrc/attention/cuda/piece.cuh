// 16 bytes of a row in the type of the products, from whatever type the cache has.
#pragma once

#include "common/dtype.h"
#include "device/ptx.cuh"

namespace dflash {

// Stored elements that lie one after the other, by one load where the address allows.
template <class U, int kCount>
struct Piece {
  static constexpr int kAlignment = sizeof(U) * kCount < 16 ? sizeof(U) * kCount : 16;
  alignas(kAlignment) U elements[kCount];

  __device__ Piece(const U* from, bool is_aligned) {
    if (is_aligned) {
      *this = *reinterpret_cast<const Piece*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) elements[i] = from[i];
    }
  }
};

__device__ inline float half_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// common/dtype.h's conversions, where the device has an instruction for them.
template <class U>
__device__ inline float stored_float(U value) {
  if constexpr (std::is_same_v<U, F16>) {
    return half_float(value.bits);
  } else if constexpr (std::is_same_v<U, F8E5M2>) {
    return half_float(static_cast<uint16_t>(value.bits << 8));  // its upper half
  } else if constexpr (std::is_same_v<U, F8E4M3>) {
    // The bits of value / 256 in fp16, exact down to the denormals; NaN has no exponent of its own.
    const uint32_t magnitude = value.bits & 0x7f;
    const uint32_t bits = (value.bits & 0x80) << 8 | magnitude << 7;
    return half_float(static_cast<uint16_t>(magnitude == 0x7f ? 0x7e00 : bits)) * 256.0f;
  } else {
    return to_float(value);
  }
}

template <class T, class U, int kCount>
__device__ inline uint4 converted(const Piece<U, kCount>& piece) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      words[i] = __float_as_uint(stored_float(piece.elements[i]));
    } else {
      words[i] = round_pair<T>(stored_float(piece.elements[2 * i]),
                               stored_float(piece.elements[2 * i + 1]));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace dflash
