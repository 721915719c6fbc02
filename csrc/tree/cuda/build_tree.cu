// build_tree: the best nodes first, under a budget.
//
//   build  grid num_requests, one warp each: a step takes the node whose best child is best, and
//          finds the next best children of that node and of the new one among their candidates
//   pack   grid num_requests, kBlock threads: the nodes to where the requests before end
//   smem   none; 16 B
//   reads  scores and ids of a slot, from the cache after the first time
//
// Order of nodes: score along the path, higher first; then the parent's row, the token id and the
// candidate's number, lower first.
//
// Reference: python/dflash_ops/reference/tree.py

#include "device/warp.cuh"
#include "tree/cuda/build.h"
#include "tree/cuda/launch.h"
#include "tree/plan.h"

namespace dflash {
namespace {

constexpr int kBlock = kTreeMetadataBlock;
constexpr float kNone = -__builtin_inff();

struct Child {
  float score;  // along the path
  int64_t id;
  int64_t candidate;  // -1: no child is left

  __device__ bool before(const Child& other) const {
    if (score != other.score) return score > other.score;
    return id != other.id ? id < other.id : candidate < other.candidate;
  }
};

struct Builder {
  const BuildTreeParams& p;
  TreeNode* nodes;
  int64_t b;
  int64_t num_slots;

  // The best child of a node after `last` (candidate -1: of all). One whose score is NaN or -inf,
  // or whose id is absent, is none.
  __device__ Child child_after(float score, int64_t node_slot, int64_t candidate,
                               const Child& last) const {
    Child best{0.0f, 0, -1};
    const int64_t slot = node_slot + 1;
    if (slot >= num_slots) return best;
    const auto offer = [&](const Child& child) {
      if (child.candidate >= 0 && (best.candidate < 0 || child.before(best))) best = child;
    };
    const float* scores = p.scores + b * p.score_strides[0] + slot * p.score_strides[1] +
                          (slot > 0 ? candidate * p.score_strides[2] : 0);
    for (int64_t k = lane_index(); k < p.num_candidates; k += kWarpSize) {
      const Child child{score + scores[k * p.score_strides[3]], p.id(b, slot, k), k};
      if (!(child.score > kNone) || child.id < 0) continue;
      if (last.candidate < 0 || last.before(child)) offer(child);
    }
    for (int width = kWarpSize / 2; width > 0; width /= 2) {
      offer({__shfl_xor_sync(kFullMask, best.score, width),
             __shfl_xor_sync(kFullMask, best.id, width),
             __shfl_xor_sync(kFullMask, best.candidate, width)});
    }
    return best;
  }

  __device__ void set_child(int64_t i, const Child& child) const {
    nodes[i].child_score = child.score;
    nodes[i].child_id = child.id;
    nodes[i].child_candidate = child.candidate;
  }

  __device__ void add(int64_t i, int64_t id, int64_t parent, float score, int64_t slot,
                      int64_t candidate) const {
    const Child child = child_after(score, slot, candidate, {0.0f, 0, -1});
    if (lane_index() == 0) {
      nodes[i] = {id, parent, slot, candidate, 0, 0, score, 0.0f};
      set_child(i, child);
    }
    __syncwarp();
  }

  // The node whose best child is best, the lowest of equals; -1: there is none.
  __device__ int64_t best_parent(int64_t count) const {
    int64_t parent = -1;
    float score = 0.0f;
    const auto offer = [&](int64_t other, float other_score) {
      const bool is_better = other >= 0 && (parent < 0 || other_score > score ||
                                            (other_score == score && other < parent));
      if (is_better) {
        parent = other;
        score = other_score;
      }
    };
    for (int64_t i = lane_index(); i < count; i += kWarpSize) {
      if (nodes[i].child_candidate >= 0) offer(i, nodes[i].child_score);
    }
    for (int width = kWarpSize / 2; width > 0; width /= 2) {
      const int64_t other = __shfl_xor_sync(kFullMask, parent, width);
      offer(other, __shfl_xor_sync(kFullMask, score, width));
    }
    return parent;
  }

  __device__ int64_t build(int64_t budget) const {
    add(0, p.anchors[b], -1, 0.0f, -1, 0);
    for (int64_t count = 1; count < budget; ++count) {
      const int64_t parent = best_parent(count);
      if (parent < 0) return count;
      const TreeNode node = nodes[parent];
      const Child child{node.child_score, node.child_id, node.child_candidate};
      __syncwarp();  // every lane has read the node
      const Child next = child_after(node.score, node.slot, node.candidate, child);
      if (lane_index() == 0) set_child(parent, next);
      add(count, child.id, parent, child.score, node.slot + 1, child.candidate);
    }
    return budget;
  }
};

__global__ void build_tree_kernel(const __grid_constant__ BuildTreeParams p,
                                  const __grid_constant__ BuildTreeWork work) {
  const int64_t b = blockIdx.x;
  int64_t budget = p.budgets ? p.budgets[b] : p.max_nodes;
  int32_t bits = 0;
  int64_t count = 0;
  if (p.anchors[b] >= 0 && budget > 0) {
    const int64_t num_drafts = p.num_drafts ? p.num_drafts[b] : p.num_slots;
    if (budget > p.max_nodes || num_drafts > p.num_slots) bits |= kBoundTooSmall;
    budget = budget < p.max_nodes ? budget : p.max_nodes;
    const int64_t num_slots = num_drafts < p.num_slots ? num_drafts : p.num_slots;
    count = Builder{p, work.nodes + b * p.max_nodes, b, num_slots}.build(budget);
  }
  if (lane_index() == 0) {
    work.counts[b] = count;
    p.status.add(b, bits);
  }
}

__global__ void __launch_bounds__(kBlock)
    pack_trees_kernel(const __grid_constant__ BuildTreeParams p,
                      const __grid_constant__ BuildTreeWork work) {
  __shared__ unsigned long long before, total;
  const int64_t b = blockIdx.x;
  if (threadIdx.x == 0) before = total = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < p.num_requests; i += kBlock) {
    const auto count = static_cast<unsigned long long>(work.counts[i]);
    atomicAdd(&total, count);
    if (i < b) atomicAdd(&before, count);
  }
  __syncthreads();
  if (b == 0 && threadIdx.x == 0) p.cu_rows.set(0, 0);
  if (b >= p.num_requests) return;
  const int64_t first = static_cast<int64_t>(before), count = work.counts[b];
  for (int64_t i = threadIdx.x; i < count; i += kBlock) {
    const TreeNode& node = work.nodes[b * p.max_nodes + i];
    p.tokens.set(first + i, node.id);
    p.parents.set(first + i, node.parent);
    *p.path_scores.at<float>(first + i) = node.score;
  }
  for (int64_t i = threadIdx.x; i < p.max_nodes; i += kBlock) {
    const int64_t row = b * p.max_nodes + i;
    if (row < static_cast<int64_t>(total)) continue;
    p.tokens.set(row, -1);
    p.parents.set(row, -1);
    *p.path_scores.at<float>(row) = kNone;
  }
  if (threadIdx.x == 0) p.cu_rows.set(b + 1, first + count);
}

}  // namespace

cudaError_t launch_build_tree(const BuildTreeParams& p, const BuildTreeWork& work,
                              cudaStream_t stream) {
  if (p.num_requests > 0) {  // a grid of 0 CTAs is a launch error
    build_tree_kernel<<<p.num_requests, kWarpSize, 0, stream>>>(p, work);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  const int64_t num_ctas = p.num_requests > 0 ? p.num_requests : 1;  // cu_rows[0] is there anyway
  pack_trees_kernel<<<num_ctas, kBlock, 0, stream>>>(p, work);
  return cudaGetLastError();
}

}  // namespace dflash
