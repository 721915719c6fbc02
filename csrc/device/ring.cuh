// A ring of stages in shared memory that some threads fill and others empty.
#pragma once

#include <cstdint>

namespace dflash {

// A place in it, for one side.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity;  // of the phase to wait for

  __device__ explicit Ring(uint32_t first_parity) : parity(first_parity) {}
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace dflash
