// verify_tree: verification of drafts that branch.
//
// rrs: from the anchor down, a node's children are tested one after another, each against what the
// rejected ones have left of the target's law. traversal (arXiv 2505.12398): from the leaves up, in
// postorder, every node that is still a leaf has a coin for the whole path to it. target_only: the
// target draws, and the child that carries its token is followed. typical: the longest path of
// drafts that are likely enough.
//
// Reference: python/dflash_ops/reference/rejection_tree.py
#include <deque>
#include <vector>

#include "verify/cpu/ids_sum.h"
#include "verify/cpu/kernels.h"
#include "verify/cpu/request.h"

namespace dflash {
namespace {

float sum_of_ids(const float* terms, int64_t count) {
  VocabSum sum;
  for (int64_t first_id = 0; first_id < count; first_id += kSpan) {
    sum.add(first_id, terms + first_id, std::min<int64_t>(kSpan, count - first_id));
  }
  return sum.value();
}

float sum_of_list(const float* terms, int64_t count) {
  OrderedSum sum;
  for (int64_t j = 0; j < count; ++j) sum.add(terms[j]);
  return sum.value();
}

// A row and its children. Rejected children of laws q1, q2, .. have taken Q = q1 + D1 q2 + D2 q3 ..
// of scale * p, where w = max(scale * p - Q, 0), M is its sum, and D = M + 1 - scale after each of
// them (1 before): w / M is what is left of the law, and w / D what the next child is tested
// against. The scale is that of rule block, 1 under rrs.
struct Node {
  int64_t idx;
  TargetRow target;
  float scale = 1.0f;
  float mass = scale;          // M
  int64_t child = -1;          // the next to be tested
  DraftLaw q{};                // of that child
  DraftLaw taken{};            // Q
  std::vector<float> dense{};  // [2, vocab_size]  a dense q; its Q

  bool has_law() const { return q.count > 0 || q.dense != nullptr; }
  void own_dense_law(int64_t vocab_size) {
    dense.resize(2 * vocab_size);
    for (int64_t id = 0; id < vocab_size; ++id) dense[id] = q.prob(id);
    q.dense = dense.data();
    taken.dense = dense.data() + vocab_size;
    q.dense_stride = taken.dense_stride = 1;
    q.dense_total = 1.0f;
  }
  void own_sparse_law() {
    taken = q;
    std::fill_n(taken.probs, taken.count, 0.0f);
  }

  float open() const { return mass + (1.0f - scale); }  // D
  float left(int64_t id) const {                        // w
    return residual_weight(prob_of(target, id), taken.prob(id), scale);
  }

  void reject(int64_t id, bool has_replacement) {
    const bool is_dense = !dense.empty();
    const int64_t count = is_dense ? static_cast<int64_t>(dense.size()) / 2 : q.count;
    float* const drawn = is_dense ? dense.data() : q.probs;
    float* const sum = is_dense ? dense.data() + count : taken.probs;
    const float share = open();
    for (int64_t j = 0; j < count; ++j) sum[j] += share * drawn[j];
    mass = residual_mass(target, taken, scale);
    if (has_replacement) return;
    const int64_t at = is_dense ? id : std::find(q.ids, q.ids + count, id) - q.ids;
    if (at < count) drawn[at] = 0.0f;
    const float rest = is_dense ? sum_of_ids(drawn, count) : sum_of_list(drawn, count);
    if (rest > 0.0f) {
      for (int64_t j = 0; j < count; ++j) drawn[j] /= rest;
    } else {
      q = DraftLaw{};
    }
  }
};

class Tree : RejectionRequest {
 public:
  Tree(const VerifyTreeParams& p, int64_t b, bool may_share_rows)
      : RejectionRequest(p, b, may_share_rows), tree_(p) {
    for (int64_t i = 0; i < num_rows_; ++i) {
      if (!is_bad_parent(parent(i), i)) continue;
      bits_ |= kBadTree;
      num_rows_ = std::max<int64_t>(i, 1);
    }
    first_child_.assign(num_rows_, -1);
    next_sibling_.assign(num_rows_, -1);
    logprobs_.assign(num_rows_, 0.0f);
    for (int64_t i = num_rows_ - 1; i > 0; --i) {
      if (!is_draft_usable(i)) continue;  // rejected, whatever its value: the law stays as it is
      next_sibling_[i] = first_child_[parent(i)];
      first_child_[parent(i)] = i;
    }
  }

  void run() {
    if (num_rows_ > 0) {
      switch (tree_.rule) {
        case TreeRule::kRecursive: walk_recursive(); break;
        case TreeRule::kTraversal: walk_traversal(); break;
        case TreeRule::kTargetOnly: walk_target_only(); break;
        case TreeRule::kTypical: walk_typical(); break;
      }
    }
    finish();
  }

 private:
  int64_t parent(int64_t i) const { return tree_.parents[first_ + i]; }

  // A node whose children are tested against their law.
  Node enter(int64_t i, float scale) {
    Node node{.idx = i, .target = load_target<TargetRow>(i), .scale = scale};
    if (first_child_[i] < 0) return node;
    if (!is_sampled_) bits_ |= kBadQ;  // no law
    if (!is_sampled_ || !is_law_usable(i, node.q)) {
      node.q = DraftLaw{};
      return node;
    }
    node.child = first_child_[i];
    if (node.q.dense != nullptr) {
      node.own_dense_law(p_.options.vocab_size);
    } else {
      node.own_sparse_law();
    }
    return node;
  }
  void reject_child(Node& node) {
    node.reject(token(node.child), tree_.has_replacement);
    node.child = next_sibling_[node.child];
    if (node.child < 0 || node.has_law()) return;
    bits_ |= kBadQ;  // more siblings than tokens that could be drawn
    node.child = -1;
  }
  void pass(int64_t child, const TargetRow& row) {
    logprobs_[child] = logprob(row.logit(token(child)), row);
  }
  // The path ends at the node, all of whose children are rejected.
  void end_at(const Node& node) {
    end_ = node.idx;
    last_ = draw_last(node.idx, node.target, node.taken, node.scale);
    last_logprob_ = logprob(last_.value, node.target);
  }
  void probe(const Node& node) {
    if (p_.is_probe) probe_row(node.idx, node.target, node.taken, node.scale);
  }

  // A probe visits every row, and every child as if its siblings were rejected.
  void walk_recursive() {
    int64_t at = 0;
    for (int64_t i = 0; i < num_rows_; ++i) {
      if (i != at && !p_.is_probe) continue;
      Node node = enter(i, 1.0f);
      int64_t accepted = -1;
      while (node.child >= 0 && (accepted < 0 || p_.is_probe)) {
        const int64_t child = node.child;
        const float p = node.left(token(child)), q = node.open() * node.q.prob(token(child));
        const float coin = toss(child, i, accept_prob(p, q));
        if (accepted < 0 && accepts(coin, p, q)) accepted = child;
        if (accepted < 0 || p_.is_probe) reject_child(node);
      }
      probe(node);
      if (i != at) continue;
      if (accepted < 0) {
        end_at(node);
      } else {
        pass(accepted, node.target);
      }
      at = accepted;
    }
  }

  void walk_traversal() {
    std::deque<Node> path;
    path.push_back(enter(0, 1.0f));
    bool is_done = false;
    while (!path.empty()) {
      Node& node = path.back();
      if (node.child >= 0) {
        const int64_t id = token(node.child);
        const float scale = next_scale(1.0f, node.left(id), node.open() * node.q.prob(id));
        pass(node.child, node.target);
        if (scale > 0.0f || p_.is_probe) {
          path.push_back(enter(node.child, scale));
        } else {
          reject_child(node);
        }
        continue;
      }
      const int64_t i = node.idx;
      const float probability = prefix_accept_prob(node.scale, node.mass);
      const bool is_kept = i == 0 || toss(i, parent(i), probability) < probability;
      probe(node);
      if (is_kept && !is_done) end_at(node);
      is_done = is_done || is_kept;
      if (is_done && !p_.is_probe) break;
      path.pop_back();
      if (!path.empty()) reject_child(path.back());
    }
  }

  void walk_target_only() {
    int64_t at = 0;
    for (int64_t i = 0; i < num_rows_; ++i) {
      if (i != at && !p_.is_probe) continue;
      const Node node{.idx = i, .target = load_target<TargetRow>(i)};
      probe(node);
      if (i != at) continue;
      end_at(node);
      at = first_child_[i];
      while (at >= 0 && token(at) != last_.id) at = next_sibling_[at];
      if (at >= 0) pass(at, node.target);
    }
  }

  void walk_typical() {
    std::vector<int64_t> depth(num_rows_, -1);  // of the accepted
    depth[0] = 0;
    int64_t best = 0;
    for (int64_t i = 0; i < num_rows_; ++i) {
      if (depth[i] > depth[best]) best = i;
      if ((depth[i] < 0 || first_child_[i] < 0) && !p_.is_probe) continue;
      const Node node{.idx = i, .target = load_target<TargetRow>(i)};
      const float least = typical_threshold(node.target);
      for (int64_t child = first_child_[i]; child >= 0; child = next_sibling_[child]) {
        const bool is_accepted = prob_of(node.target, token(child)) > least;
        if (p_.is_probe) *p_.accept_probs.at<float>(first_ + child) = is_accepted ? 1.0f : 0.0f;
        if (is_accepted && depth[i] >= 0) depth[child] = depth[i] + 1;
        pass(child, node.target);
      }
      probe(node);
    }
    end_at(Node{.idx = best, .target = load_target<TargetRow>(best)});
  }
  float typical_threshold(const TargetRow& row) const {
    return std::min(tree_.typical_eps, tree_.typical_delta * exp_f32(-row.entropy()));
  }

  void finish() {
    std::vector<int64_t> path;
    for (int64_t i = num_rows_ > 0 ? end_ : -1; i >= 0; i = i > 0 ? parent(i) : -1) {
      path.push_back(i);
    }
    std::reverse(path.begin(), path.end());
    const auto length = static_cast<int64_t>(path.size());
    const int64_t count = std::min(length, p_.max_path + 1);
    if (count < length) bits_ |= kBoundTooSmall;  // the next accepted draft is the last token
    for (int64_t col = 0; col < count; ++col) {
      write_path_row(col, path[col]);
      if (col + 1 < length) {
        write_token(col, token(path[col + 1]), logprobs_[path[col + 1]]);
      } else {
        write_token(col, last_.id, last_logprob_);
      }
    }
    write_counts(count);
  }

  const VerifyTreeParams& tree_;
  std::vector<int64_t> first_child_;  // [num_rows]  usable drafts only
  std::vector<int64_t> next_sibling_;
  std::vector<float> logprobs_;  // of the drafts that were tested
  int64_t end_ = 0;              // the last row of the path
  Best last_;
  float last_logprob_ = 0.0f;
};

}  // namespace

void verify_tree_cpu(const VerifyTreeParams& p, int64_t begin, int64_t end) {
  const bool may_share = may_share_rows(p.sampling);
  for (int64_t b = begin; b < end; ++b) Tree(p, b, may_share).run();
}

}  // namespace dflash
