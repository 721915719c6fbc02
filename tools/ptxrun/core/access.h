// One lane's access to memory: bounds, alignment, initialisation, races. Null: it must not happen.
#pragma once

#include "core/grid.h"

namespace ptxrun {

enum class Touch : uint8_t { kRead, kWrite, kAtomic, kAsync };

// `used` of the bytes are really touched (all by default); alignment is that of `bytes`.
uint8_t* reach(Warp& w, const Instruction& in, Space space, uint64_t address, uint64_t bytes,
               int lane, Touch touch, uint64_t used = ~uint64_t{0});

// For all lanes of the mask at once: what to add to a lane's address, if nothing needs to be looked
// at lane by lane. Null: something does.
uint8_t* reach_all(Warp& w, const Instruction& in, Space space, const uint64_t* addresses,
                   uint64_t bytes, uint32_t mask, Touch touch);

// All lanes' addresses: the base register and the instruction's offset. Defined in exec_memory.cpp.
void addresses_of(Warp& w, const Instruction& in, Ref base, uint64_t* addresses);

// Which memory a generic address is in.
Space space_at(uint64_t address);

// Defined in exec_control.cpp.
bool meet(Warp& w, const Instruction& in, Ref members, uint32_t mask);

}  // namespace ptxrun
