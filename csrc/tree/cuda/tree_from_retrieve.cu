// tree_from_retrieve: parents from first-child and next-sibling links.
//
//   grid   num_requests              one warp per request
//   block  32
//   smem   none
//   reads  the links once by a walk from node to node
//
// A node is given its parent once, and only by a lower row, so links with cycles end. What a link
// means depends on those before it, so one lane follows them all; the others only clear the way.
//
// Reference: python/dflash_ops/reference/tree.py

#include "device/warp.cuh"
#include "tree/cuda/launch.h"

namespace dflash {
namespace {

__global__ void tree_from_retrieve_kernel(const __grid_constant__ TreeFromRetrieveParams p) {
  const int64_t b = blockIdx.x;
  for (int64_t i = lane_index(); i < p.num_nodes; i += kWarpSize) p.parents.set(b, i, -1);
  __syncwarp();
  if (lane_index() != 0) return;
  int32_t bits = 0;
  for (int64_t i = 0; i < p.num_nodes; ++i) {
    if (i > 0 && p.parents.get(b, i) < 0) continue;  // not reached: padding
    int64_t child = p.next_token(b, i);
    while (child > i && child < p.num_nodes && p.parents.get(b, child) < 0) {
      p.parents.set(b, child, i);
      child = p.next_sibling(b, child);
    }
    if (child != -1) bits |= kBadTree;
  }
  p.status.add(b, bits);
}

}  // namespace

cudaError_t launch_tree_from_retrieve(const TreeFromRetrieveParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  tree_from_retrieve_kernel<<<p.num_requests, kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
