// Counters of memory traffic: sectors, wavefronts, and which sectors a launch has touched.
#pragma once

#include "core/access.h"

namespace ptxrun {

// One instruction of lanes that each touch `bytes` at their address.
void count_access(Warp& w, const Instruction& in, Space space, const uint64_t* addresses,
                  uint64_t bytes, uint32_t mask, Touch touch);

// The shared side of a copy from global memory: wavefronts, and no bytes asked twice.
void count_waves(Warp& w, const Instruction& in, const uint64_t* addresses, uint64_t bytes,
                 uint32_t mask);

// A run of bytes of a bulk copy.
void count_global_run(Warp& w, const Instruction& in, uint64_t address, uint64_t bytes,
                      Touch touch);
// Bytes of shared memory that a copy engine or a tensor core moves without conflicts.
void count_shared_run(Warp& w, const Instruction& in, uint64_t bytes);

// Bytes that a thread block has asked for and that have not come: what hides the latency.
void count_issued(uint64_t& in_flight, uint64_t& most, uint64_t bytes);

}  // namespace ptxrun
