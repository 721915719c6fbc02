// Copies that complete some time after they were issued.
#pragma once

#include "core/grid.h"

namespace ptxrun {

void wait_for_groups(Warp& w, size_t may_pend);  // cp.async.wait_group
void finish_copies(Warp& w);                     // at the end of the warp: all must be waited for

}  // namespace ptxrun
