// tree_metadata: depth, ancestors and links of every node, from the parents.
//
//   grid   num_requests + ceil(num_rows / kBlock)    a CTA per request, then one per kBlock rows
//   block  kBlock
//   smem   4 B, or kBlock B
//   reads  parents; a node's ancestors from L1
//
// A request's CTA writes its own rows; the CTAs after those write the rows of no request. A thread
// walks up from its node: ancestors fall, so it meets the words of its mask from the last to the
// first and needs no one else's. Siblings are in row order, so one warp links them from the last
// 32 nodes to the first.
//
// Reference: python/dflash_ops/reference/tree.py

#include "device/warp.cuh"
#include "tree/cuda/launch.h"
#include "tree/cuda/links.cuh"
#include "tree/cuda/rows.cuh"
#include "tree/plan.h"
#include "verify/params.h"

namespace dflash {
namespace {

constexpr int kBlock = kTreeMetadataBlock;

__device__ void set_empty(const TreeMetadataParams& p, int64_t row) {
  p.depth.set(row, 0);
  p.first_child.set(row, -1);
  p.next_sibling.set(row, -1);
  for (int64_t w = 0; w < p.mask.num_words; ++w) p.mask.word(row, w) = 0;
}

// The links of a request's first num_nodes rows.
struct Links {
  const TreeMetadataParams& p;
  int64_t first_row;
  int64_t num_nodes;

  __device__ int64_t parent_of(int64_t i) const {
    return i > 0 && i < num_nodes ? p.parents[first_row + i] : -1;
  }
  __device__ int64_t first_child(int64_t i) const { return p.first_child.get(first_row + i); }
  __device__ void set_first_child(int64_t i, int64_t child) const {
    p.first_child.set(first_row + i, child);
  }
  __device__ void set_next_sibling(int64_t i, int64_t sibling) const {
    p.next_sibling.set(first_row + i, sibling);
  }
};

struct Request {
  const TreeMetadataParams& p;
  RowRange rows;
  bool is_tree;

  __device__ int64_t parent(int64_t i) const { return is_tree ? p.parents[rows.first + i] : i - 1; }

  // The nodes before the first bad one; the anchor always stays.
  __device__ int64_t num_good(int32_t& bits) const {
    if (!is_tree) return rows.count;
    __shared__ int32_t first_bad;
    const int64_t limit = rows.count < p.max_rows ? rows.count : p.max_rows;
    if (threadIdx.x == 0) first_bad = INT32_MAX;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < limit; i += kBlock) {
      if (!is_bad_parent(parent(i), i)) continue;
      atomicMin(&first_bad, static_cast<int32_t>(i));
      break;
    }
    __syncthreads();
    if (rows.count > limit) bits |= kBoundTooSmall;
    if (first_bad >= limit) return limit;
    bits |= kBadTree;
    return first_bad > 1 ? first_bad : 1;
  }

  __device__ void set_depth_and_mask(int64_t i) const {
    const int64_t row = rows.first + i;
    int64_t depth = 0;
    for (int64_t a = i, w = p.mask.num_words - 1; w >= 0; --w) {
      uint32_t word = 0;
      while (a >= 32 * w) {
        word |= 1u << a % 32;
        if (a == 0) break;
        a = parent(a);
        ++depth;
      }
      p.mask.word(row, w) = word;
    }
    p.depth.set(row, depth);
  }

  __device__ void set_chain_row(int64_t i) const {
    const int64_t row = rows.first + i;
    const int64_t num_seen = i < p.max_rows ? i + 1 : p.max_rows;
    for (int64_t w = 0; w < p.mask.num_words; ++w) {
      const int64_t bits = num_seen - 32 * w;  // of this word, from its first
      p.mask.word(row, w) = bits <= 0 ? 0 : bits >= 32 ? kFullMask : (1u << bits) - 1;
    }
    p.depth.set(row, i);
    p.first_child.set(row, i + 1 < rows.count ? i + 1 : -1);
    p.next_sibling.set(row, -1);
  }

  __device__ void write() const {
    int32_t bits = rows.in_range ? 0 : kOutOfRange;
    const int64_t num_nodes = rows.count > 0 ? num_good(bits) : 0;
    for (int64_t i = threadIdx.x; i < rows.count; i += kBlock) {
      if (!is_tree) {
        set_chain_row(i);
        continue;
      }
      set_empty(p, rows.first + i);
      if (i < num_nodes) set_depth_and_mask(i);
    }
    __syncthreads();
    if (is_tree && warp_index() == 0) {
      const Links links{p, rows.first, num_nodes};
      for (int64_t base = (num_nodes - 1) / 32 * 32; base >= 0; base -= 32) {
        link_children(links, base);
      }
    }
    if (threadIdx.x == 0) p.status.add(blockIdx.x, bits);
  }
};

__global__ void __launch_bounds__(kBlock)
    tree_metadata_kernel(const __grid_constant__ TreeMetadataParams p) {
  const int64_t b = blockIdx.x;
  if (b >= p.num_requests) {
    for_rows_of_no_request<kBlock>(p.cu_rows, p.num_requests, p.num_rows,
                                   (b - p.num_requests) * kBlock,
                                   [&](int64_t row) { set_empty(p, row); });
    return;
  }
  const bool is_tree = !p.tree_nodes || p.tree_nodes[b] > 0;
  Request{p, row_range(p.cu_rows, b, p.num_rows), is_tree}.write();
}

}  // namespace

cudaError_t launch_tree_metadata(const TreeMetadataParams& p, cudaStream_t stream) {
  const int64_t num_ctas = tree_metadata_ctas(p.num_requests, p.num_rows);
  if (num_ctas == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  tree_metadata_kernel<<<num_ctas, kBlock, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
