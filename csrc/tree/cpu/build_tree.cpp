// build_tree: the best nodes first, under a budget.
//
// Each node of the tree remembers its best child that is not in the tree yet; the best of those is
// the next node. So a step looks at one entry per node and at the candidates of two slots, and
// nothing is sorted or stored beyond the tree.
//
// Order of nodes: score along the path, higher first; then the parent's row, the token id and the
// candidate's number, lower first.
//
// Reference: python/dflash_ops/reference/tree.py

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tree/cpu/kernels.h"

namespace dflash {
namespace {

struct Child {
  float score;  // along the path
  int64_t id;
  int64_t candidate;  // -1: no child is left

  bool before(const Child& other) const {
    if (score != other.score) return score > other.score;
    return id != other.id ? id < other.id : candidate < other.candidate;
  }
};

struct Node {
  float score;
  int64_t slot;       // -1: the anchor
  int64_t candidate;  // of its slot
  Child next;         // its best child that is not in the tree
};

struct Tree {
  const BuildTreeParams& p;
  int64_t b;
  int64_t num_slots;

  // The best child of a node after `last` (candidate -1: of all). One whose score is NaN or -inf,
  // or whose id is absent, is none.
  Child child_after(const Node& node, const Child& last) const {
    Child best{0.0f, 0, -1};
    const int64_t slot = node.slot + 1;
    if (slot >= num_slots) return best;
    const float* scores = p.scores + b * p.score_strides[0] + slot * p.score_strides[1] +
                          (slot > 0 ? node.candidate * p.score_strides[2] : 0);
    for (int64_t k = 0; k < p.num_candidates; ++k) {
      const Child child{node.score + scores[k * p.score_strides[3]], p.id(b, slot, k), k};
      if (!(child.score > -INFINITY) || child.id < 0) continue;
      if (last.candidate >= 0 && !last.before(child)) continue;
      if (best.candidate < 0 || child.before(best)) best = child;
    }
    return best;
  }

  Node node(float score, int64_t slot, int64_t candidate) const {
    Node made{score, slot, candidate, {0.0f, 0, -1}};
    made.next = child_after(made, made.next);
    return made;
  }
};

int64_t build(const BuildTreeParams& p, int64_t b, int32_t& bits, std::vector<Node>& nodes) {
  int64_t budget = p.budgets ? p.budgets[b] : p.max_nodes;
  if (p.anchors[b] < 0 || budget <= 0) return 0;
  if (budget > p.max_nodes) bits |= kBoundTooSmall;
  budget = std::min(budget, p.max_nodes);
  const int64_t num_drafts = p.num_drafts ? p.num_drafts[b] : p.num_slots;
  if (num_drafts > p.num_slots) bits |= kBoundTooSmall;
  const Tree tree{p, b, std::min(num_drafts, p.num_slots)};

  const int64_t first = b * p.max_nodes;
  const auto write = [&](int64_t row, int64_t token, int64_t parent, float score) {
    p.tokens.set(row, token);
    p.parents.set(row, parent);
    p.path_scores.at<float>(row)[0] = score;
  };
  nodes.assign(1, tree.node(0.0f, -1, 0));
  write(first, p.anchors[b], -1, 0.0f);
  while (static_cast<int64_t>(nodes.size()) < budget) {
    int64_t parent = -1;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const bool is_better = nodes[i].next.candidate >= 0 &&
                             (parent < 0 || nodes[i].next.score > nodes[parent].next.score);
      if (is_better) parent = static_cast<int64_t>(i);
    }
    if (parent < 0) break;
    const Child child = nodes[parent].next;
    nodes[parent].next = tree.child_after(nodes[parent], child);
    write(first + static_cast<int64_t>(nodes.size()), child.id, parent, child.score);
    nodes.push_back(tree.node(child.score, nodes[parent].slot + 1, child.candidate));
  }
  return static_cast<int64_t>(nodes.size());
}

}  // namespace

void build_tree_cpu(const BuildTreeParams& p, int64_t begin, int64_t end) {
  std::vector<Node> nodes;
  for (int64_t b = begin; b < end; ++b) {
    int32_t bits = 0;
    p.cu_rows.set(b + 1, build(p, b, bits, nodes));
    p.status.add(b, bits);
  }
}

void pack_trees_cpu(const BuildTreeParams& p) {
  int64_t to = 0;
  p.cu_rows.set(0, 0);
  for (int64_t b = 0; b < p.num_requests; ++b) {
    const int64_t first = b * p.max_nodes, count = p.cu_rows.get(b + 1);
    for (int64_t i = 0; i < count; ++i, ++to) {
      p.tokens.set(to, p.tokens.get(first + i));
      p.parents.set(to, p.parents.get(first + i));
      p.path_scores.at<float>(to)[0] = p.path_scores.at<float>(first + i)[0];
    }
    p.cu_rows.set(b + 1, to);
  }
  for (; to < p.num_requests * p.max_nodes; ++to) {
    p.tokens.set(to, -1);
    p.parents.set(to, -1);
    p.path_scores.at<float>(to)[0] = -INFINITY;
  }
}

}  // namespace dflash
