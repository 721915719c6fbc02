// tree_to_paths: the rows from the anchor to each leaf.
//
//   grid   num_requests              one warp per request
//   block  32
//   smem   none
//   reads  parents, from the cache after the first time
//
// A lane asks of its row whether a later row has it for a parent. Leaves are numbered in row order
// by a ballot, and each is walked up from by its lane.
//
// Reference: python/dflash_ops/reference/tree.py

#include "device/warp.cuh"
#include "tree/cuda/launch.h"
#include "verify/params.h"

namespace dflash {
namespace {

struct Tree {
  const TreeToPathsParams& p;
  RowRange rows;

  __device__ int64_t parent(int64_t i) const { return p.parents[rows.first + i]; }

  // The rows before the first bad parent; the anchor always stays.
  __device__ int64_t num_good(int32_t& bits) const {
    for (int64_t base = 0; base < rows.count; base += kWarpSize) {
      const int64_t i = base + lane_index();
      const int lane = first_lane(i < rows.count && is_bad_parent(parent(i), i));
      if (lane == kWarpSize) continue;
      bits |= kBadTree;
      return base + lane > 0 ? base + lane : 1;
    }
    return rows.count;
  }

  __device__ int64_t depth(int64_t i) const {
    int64_t depth = 0;
    for (; i > 0; i = parent(i)) ++depth;
    return depth;
  }

  __device__ bool is_leaf(int64_t i, int64_t num_rows) const {
    bool is_parent = false;
    for (int64_t j = i + 1; j < num_rows && !is_parent; ++j) is_parent = parent(j) == i;
    return !is_parent;
  }
};

__global__ void tree_to_paths_kernel(const __grid_constant__ TreeToPathsParams p) {
  const int64_t b = blockIdx.x;
  const Tree tree{p, row_range(p.cu_rows, b, p.num_rows)};
  int32_t bits = tree.rows.in_range ? 0 : kOutOfRange;
  const int64_t num_rows = tree.num_good(bits);
  IndexOut paths = p.paths;  // those of this request
  paths.data = static_cast<char*>(paths.data) + b * p.request_stride * (paths.is_int64 ? 8 : 4);

  int64_t num_leaves = 0;
  bool is_cut = false;
  for (int64_t base = 0; base < num_rows && num_leaves <= p.max_paths; base += kWarpSize) {
    const int64_t i = base + lane_index();
    const bool is_leaf = i < num_rows && tree.is_leaf(i, num_rows);
    const uint32_t leaves = __ballot_sync(kFullMask, is_leaf);
    const int64_t path = num_leaves + __popc(leaves & ((1u << lane_index()) - 1));
    num_leaves += __popc(leaves);
    if (!is_leaf || path > p.max_paths) continue;
    const int64_t depth = tree.depth(i);
    is_cut |= path == p.max_paths || depth >= p.path_length;
    if (path == p.max_paths) continue;
    for (int64_t node = i, d = depth; d >= 0; --d) {
      if (d < p.path_length) paths.set(path, d, node);
      if (d > 0) node = tree.parent(node);
    }
    for (int64_t d = depth + 1; d < p.path_length; ++d) paths.set(path, d, -1);
  }
  if (__any_sync(kFullMask, is_cut)) bits |= kBoundTooSmall;
  const int64_t num_paths = num_leaves < p.max_paths ? num_leaves : p.max_paths;
  for (int64_t path = num_paths; path < p.max_paths; ++path) {
    for (int64_t d = lane_index(); d < p.path_length; d += kWarpSize) paths.set(path, d, -1);
  }
  if (lane_index() == 0) {
    p.num_paths.set(b, num_paths);
    p.status.add(b, bits);
  }
}

}  // namespace

cudaError_t launch_tree_to_paths(const TreeToPathsParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  tree_to_paths_kernel<<<p.num_requests, kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
