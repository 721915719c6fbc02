// tree_from_mask: parents from who may see whom, the inverse of tree_metadata's mask.
//
//   grid   num_requests + ceil(num_rows / kBlock)    a CTA per request, then one per kBlock rows
//   block  kBlock
//   smem   4 B, or kBlock B
//   reads  a row's mask and its parent's
//
// Rows rise along a path, so a node's parent is the highest row below its own that it sees. A
// thread decides one row; the first row that is bad ends the tree.
//
// Reference: python/dflash_ops/reference/tree.py

#include "tree/cuda/launch.h"
#include "tree/cuda/rows.cuh"
#include "tree/plan.h"

namespace dflash {
namespace {

constexpr int kBlock = kTreeMetadataBlock;

// The parent of local row i; below -1: its mask is no tree's.
__device__ int64_t parent_by_mask(const TreeFromMaskParams& p, const RowRange& rows, int64_t i) {
  constexpr int64_t kBad = -2;
  const int64_t row = rows.first + i;
  if (!p.mask(row, i)) return kBad;
  for (int64_t j = i + 1; j < p.mask.num_cols; ++j) {
    if (p.mask(row, j)) return kBad;
  }
  int64_t parent = i - 1;
  while (parent >= 0 && !p.mask(row, parent)) --parent;
  if (parent < 0) return i == 0 ? -1 : kBad;
  for (int64_t j = 0; j < parent; ++j) {
    if (p.mask(row, j) != p.mask(rows.first + parent, j)) return kBad;
  }
  return parent;
}

__global__ void __launch_bounds__(kBlock)
    tree_from_mask_kernel(const __grid_constant__ TreeFromMaskParams p) {
  __shared__ unsigned long long num_good;
  const int64_t b = blockIdx.x;
  if (b >= p.num_requests) {
    for_rows_of_no_request<kBlock>(p.cu_rows, p.num_requests, p.num_rows,
                                   (b - p.num_requests) * kBlock,
                                   [&](int64_t row) { p.parents.set(row, -1); });
    return;
  }
  const RowRange rows = row_range(p.cu_rows, b, p.num_rows);
  if (threadIdx.x == 0) num_good = rows.count;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < rows.count; i += kBlock) {
    const int64_t parent = parent_by_mask(p, rows, i);
    p.parents.set(rows.first + i, parent < -1 ? -1 : parent);
    if (parent < -1) atomicMin(&num_good, static_cast<unsigned long long>(i));
  }
  __syncthreads();
  for (int64_t i = static_cast<int64_t>(num_good) + threadIdx.x; i < rows.count; i += kBlock) {
    p.parents.set(rows.first + i, -1);
  }
  if (threadIdx.x != 0) return;
  const bool is_bad = static_cast<int64_t>(num_good) < rows.count;
  p.status.add(b, (rows.in_range ? 0 : kOutOfRange) | (is_bad ? kBadTree : 0));
}

}  // namespace

cudaError_t launch_tree_from_mask(const TreeFromMaskParams& p, cudaStream_t stream) {
  const int64_t num_ctas = tree_metadata_ctas(p.num_requests, p.num_rows);
  if (num_ctas == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  tree_from_mask_kernel<<<num_ctas, kBlock, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
