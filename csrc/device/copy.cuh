// Bytes from place to place, in the largest units that every address allows.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dflash {

// Calls f(std::type_identity<Unit>{}) for the largest of 16, 4, 2 and 1 bytes that divides what
// `bits`, addresses and lengths joined by |, stands for.
template <class F>
static __device__ void with_unit(uint64_t bits, F f) {
  if (bits % 16 == 0) {
    f(std::type_identity<uint4>{});
  } else if (bits % 4 == 0) {
    f(std::type_identity<uint32_t>{});
  } else if (bits % 2 == 0) {
    f(std::type_identity<uint16_t>{});
  } else {
    f(std::type_identity<uint8_t>{});
  }
}

}  // namespace dflash
