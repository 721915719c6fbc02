// First children and next siblings of nodes in row order.
#pragma once

#include <cstdint>

#include "device/warp.cuh"

namespace dflash {

// One warp: puts nodes base .. base + 31 in front of their parents' children; to be called from the
// last base down. The nodes of one parent find each other by a match over the warp. Links knows
// parent_of(i), -1 for a node that is no child, and reads and writes the links.
template <class Links>
static __device__ void link_children(const Links& links, int64_t base) {
  const int64_t i = base + lane_index();
  const int64_t parent = links.parent_of(i);
  const bool is_child = parent >= 0;
  const uint32_t before = (1u << lane_index()) - 1;
  const uint32_t siblings = __match_any_sync(kFullMask, parent);
  const uint32_t later = siblings & ~before & ~(1u << lane_index());
  const int64_t first_of_next_base = is_child ? links.first_child(parent) : -1;
  __syncwarp();  // read before it is written
  const int64_t next = later != 0 ? base + __ffs(static_cast<int>(later)) - 1 : first_of_next_base;
  if (is_child) links.set_next_sibling(i, next);
  if (is_child && (siblings & before) == 0) links.set_first_child(parent, i);
  __syncwarp();  // written before the warp reads it again
}

}  // namespace dflash
