// Numbers of x as the parts of bf16 that a product with a quantised weight reads.
#pragma once

#include "device/vector.cuh"
#include "gemm/cuda/quant_rows.h"

namespace dflash {

// Of each value, part after part, the leading bits, of which bf16 holds as many, leave it.
static __device__ void split_vector(const QuantRowsPlan& plan, BF16* to, float (&values)[kVector]) {
  for (int plane = 0; plane < plan.num_planes; ++plane, to += plan.plane_stride) {
    Pack<BF16> pack;
    for (int j = 0; j < kVector; ++j) {
      const uint32_t part = __float_as_uint(values[j]) & 0xffff0000u;
      pack.elements[j] = {static_cast<uint16_t>(part >> 16)};
      values[j] -= __uint_as_float(part);
    }
    *reinterpret_cast<Pack<BF16>*>(to) = pack;
  }
}

}  // namespace dflash
