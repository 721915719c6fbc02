// The descriptor of a tiled tensor copy, in the 128 bytes of a CUtensorMap. Its layout is our own:
// host code gets it from our encode function only.
#pragma once

#include <cstdint>

namespace ptxrun {

struct TensorMap {
  static constexpr uint32_t kMagic = 0x70747874;
  uint32_t magic;
  uint8_t rank;
  uint8_t element_bytes;
  uint8_t swizzle;  // 0 none, 1: 32, 2: 64, 3: 128 bytes
  uint8_t fills_nan;
  uint64_t base;
  uint64_t extents[5];
  uint64_t strides[4];  // bytes, from the second dimension on
  uint16_t box[5];
};
static_assert(sizeof(TensorMap) <= 128);

// 16-byte units of a swizzle atom trade places by their row in it.
constexpr uint32_t swizzled(uint32_t address, int swizzle) {
  switch (swizzle) {
    case 1: return address ^ ((address >> 7 & 1) << 4);
    case 2: return address ^ ((address >> 7 & 3) << 4);
    case 3: return address ^ ((address >> 7 & 7) << 4);
    default: return address;
  }
}

}  // namespace ptxrun
