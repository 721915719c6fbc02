#include "core/warp.h"

#include <climits>

namespace ptxrun {

void Warp::park(uint32_t which, int32_t at) {
  for_lanes(which, [&](int lane) { pcs[lane] = at; });
}

bool Warp::schedule() {
  const uint32_t ready = live & ~at_barrier & ~at_sync;
  active = 0;
  next = INT_MAX;
  if (ready == 0) return false;
  int32_t chosen = INT_MAX;
  if (is_spinning) {  // lanes that wait for others of their own warp must not starve them
    uint32_t turned = std::rotr(ready, static_cast<int>(++rotation % kLanes));
    chosen = pcs[(std::countr_zero(turned) + rotation) % kLanes];
    is_spinning = false;
  } else {
    for_lanes(ready, [&](int lane) { chosen = std::min(chosen, pcs[lane]); });
  }
  for_lanes(ready, [&](int lane) {
    if (pcs[lane] == chosen) {
      active |= 1u << lane;
    } else if (pcs[lane] > chosen) {
      next = std::min(next, pcs[lane]);
    }
  });
  pc = chosen;
  return true;
}

void Warp::exit(uint32_t which) {
  live &= ~which;
  active &= ~which;
  has_lost_lanes |= at_barrier != 0;
  at_sync = 0;  // whoever waited for these lanes looks again
}

}  // namespace ptxrun
