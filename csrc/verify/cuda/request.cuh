// One request of rejection verification, by a CTA: its rows as nodes, their laws, its noise. All
// threads hold the same and decide the same; thread 0 writes.
#pragma once

#include <cfloat>

#include "tree/cuda/links.cuh"
#include "verify/cuda/ids_sum.cuh"
#include "verify/cuda/rejection.cuh"
#include "verify/params.h"

namespace dflash {

using WalkColumn = IdColumn<kLseBlock, kWalkBlock>;

struct WalkStorage {
  float columns[kLseBlock][kWalkBlock];
  LseNode nodes[kWalkBlock / kWarpSize];
  Listed listed[kMaxSparseQ];  // of the node at hand: ids, and p there
  Taken taken[kMaxSparseQ];
  int32_t bits;
  int32_t first_bad;
};

// A row and its children; see csrc/verify/cpu/verify_tree.cpp for the recursion. Children before
// end_child are rejected.
struct Node {
  const TargetRow& row;
  int64_t i;
  float scale;
  float mass;
  int64_t first_child = -1;
  int64_t end_child = -1;
  int64_t child = -1;  // to be tested next: end_child, unless q has no token left
  bool has_law = false;

  __device__ float open() const { return mass + (1.0f - scale); }
};

// A draft at its parent.
struct Tested {
  float p;
  float left;  // of scale * p
  float q;     // of what is left of q
  float logprob;
};

class Request {
 public:
  __device__ Request(const RejectionLaunch& launch, WalkStorage& storage, int64_t request)
      : c(launch), p(launch.p), shared(storage), b(request), max_path(launch.p.max_path) {
    const SamplingOptions& o = p.sampling;
    const RowRange rows = row_range(o.cu_verify, b, p.options.num_rows);
    first = rows.first;
    num_rows = rows.count;
    if (!rows.in_range || o.requests.is_bad(b)) bits |= kOutOfRange;
    if (o.requests[b] < 0) num_rows = 0;
    if (num_rows > 0 && are_taken(rows)) {
      bits |= kOutOfRange;
      num_rows = 0;
    }
    if (num_rows > 0 && !can_enter(0)) num_rows = 0;
    is_sampled_ = is_sampled(p, b);
    if (threadIdx.x == 0) shared.bits = 0;
    if (num_rows > 0) link();
    __syncthreads();
  }

  __device__ TreeNode& node_at(int64_t i) const { return c.nodes[first + i]; }
  __device__ int64_t token(int64_t i) const { return p.tokens[first + i]; }
  __device__ int64_t parent(int64_t i) const { return p.parents ? p.parents[first + i] : i - 1; }
  // A chain looks no further than it goes.
  __device__ int64_t first_child(int64_t i) {
    if (p.parents) return node_at(i).first_child;
    return i + 1 < num_rows && is_draft_usable(i + 1) ? i + 1 : -1;
  }

  __device__ const TargetRow& target(int64_t i) {
    const TargetRow& row = c.rows[first + i];
    if (row.only_id >= 0) bits |= kNoFiniteLogit;
    return row;
  }
  // A node whose children are tested against their law.
  __device__ Node enter(int64_t i, float scale) {
    Node node{target(i), i, scale, scale};
    if (!node.row.can_draw && i <= max_path) max_path = i - 1;
    node.first_child = first_child(i);
    if (node.first_child < 0) return node;
    const bool is_good = node.row.has_good_q && (is_sampled_ || c.is_chain);
    const int32_t missing = is_good ? node.row.missing : kBadQ;
    bits |= missing;
    node.has_law = missing == 0;
    if (!node.has_law) return node;
    node.child = node.end_child = node.first_child;
    settle(node);
    return node;
  }
  // What is left of q, and taken of p, at `id`.
  __device__ Taken taken(const Node& node, int64_t id) const {
    if (!node.has_law) return {0.0f, 0.0f};
    if (is_dense()) {
      const float q = dense_q(c, first + node.i, node.row.q_total, id);
      return taken_at(c, first, node.first_child, node.end_child, id, q);
    }
    for (int j = 0; j < node.row.num_listed; ++j) {
      if (shared.listed[j].id == id) return shared.taken[j];
    }
    return {0.0f, 0.0f};
  }
  __device__ Tested test(const Node& node, int64_t child) const {
    const TargetRow& row = node.row;
    const int64_t id = token(child);
    const float z = logit_of(c, row, id);
    const float prob = row.only_id < 0 ? row.target.prob(z, id) : id == row.only_id ? 1.0f : 0.0f;
    const Taken at = taken(node, id);
    return {.p = prob,
            .left = residual_weight(prob, at.taken, node.scale),
            .q = at.drawn,
            .logprob = z > kMinusInf ? z - row.lse : kMinusInf};
  }

  __device__ void reject_child(Node& node) {
    const int64_t child = node.child;
    set_share(child, node.open(), 1.0f);
    node.end_child = node.child = node_at(child).next_sibling;
    settle(node);
    if (p.rule == TreeRule::kRecursive && node.child < 0) return;  // nobody asks what is left
    node.mass = mass(node);
    if (p.has_replacement || node.child < 0) return;
    const float rest = sum_of_drawn(node);
    set_share(child, node_at(child).share, rest);
    if (rest > 0.0f) {
      settle(node);
    } else {
      bits |= kBadQ;  // more siblings than tokens that could be drawn
      node.child = -1;
    }
  }
  // A node to come back to.
  __device__ void leave(const Node& node) const {
    if (threadIdx.x != 0) return;
    TreeNode& to = node_at(node.i);
    to.child = node.child;
    to.scale = node.scale;
    to.mass = node.mass;
  }
  __device__ Node back_to(int64_t i) const {
    __syncthreads();  // it has been written
    const TreeNode& from = node_at(i);
    Node node{c.rows[first + i], i, from.scale, from.mass};
    node.first_child = p.parents ? from.first_child : i + 1;
    node.end_child = node.child = from.child;
    node.has_law = true;
    return node;
  }

  // Calls f(id, p) for the ids of a row that are in the target's law, each by one thread; of a
  // record for those that it lists, and for all others as one.
  template <class F>
  __device__ void for_each_kept(const TargetRow& row, F f) const {
    if (c.recorded != nullptr) {
      if (threadIdx.x == 0) for_each_recorded(row, f);
      return;
    }
    const IdRange ids = id_range(p.options);
    for (int64_t tile = ids.first / kTileIds; tile * kTileIds < ids.last; ++tile) {
      for_each_kept_of_block(row, tile * kTileIds + int64_t{kLseBlock} * threadIdx.x,
                             [&](int64_t id, float z) { f(id, row.target.prob(z, id)); });
    }
  }
  // The sum of f(id, z) over them.
  template <class F>
  __device__ float sum_over_kept(const TargetRow& row, F f) const {
    return sum_over_ids<kWalkBlock>(shared.nodes, id_range(p.options), [&](int64_t first_id) {
      float sum = 0.0f;
      for_each_kept_of_block(row, first_id, [&](int64_t id, float z) { sum += f(id, z); });
      return sum;
    });
  }

  __device__ NoiseKey noise(Stream stream, int64_t parent) const {
    return request_noise(p.sampling, stream, b, first, parent);
  }

  // What the last token is drawn from, if the path ends at the node.
  __device__ DrawTask draw_task(const Node& node) const {
    return {.row = first + node.i,
            .b = b,
            .first = first,
            .first_child = node.first_child,
            .end_child = node.end_child,
            .col = -1,
            .noise = noise(kResidualStream, node.i),
            .scale = node.scale,
            .q = !node.has_law ? QKind::kNone
                 : is_dense()  ? QKind::kDense
                               : QKind::kListed};
  }
  // In the place of q: what the draw needs of it.
  __device__ void keep_taken(const Node& node) const {
    const int j = static_cast<int>(threadIdx.x);
    if (!node.has_law || is_dense() || j >= node.row.num_listed) return;
    c.listed[(first + node.i) * c.list_width + j].q = shared.taken[j].taken;
  }

  const RejectionLaunch& c;
  const VerifyTreeParams& p;
  WalkStorage& shared;
  const int64_t b;
  int64_t first;
  int64_t num_rows;
  int64_t max_path;
  int32_t bits = 0;  // of this thread

 private:
  // Rows that an earlier request has, too: only one may write of them.
  __device__ bool are_taken(const RowRange& rows) const {
    bool is_taken = false;
    for (int64_t other = threadIdx.x; other < b; other += kWalkBlock) {
      is_taken |= overlap(rows, row_range(p.sampling.cu_verify, other, p.options.num_rows));
    }
    return __syncthreads_or(is_taken);
  }
  __device__ bool is_dense() const { return is_sampled_ && !p.q_ids; }
  __device__ bool can_enter(int64_t i) {
    const TargetRow& row = c.rows[first + i];
    bits |= row.status;
    return row.can_enter;
  }
  __device__ bool is_draft_usable(int64_t i) {
    const bool is_token = token(i) >= 0 && token(i) < p.options.vocab_size;
    if (!is_token) bits |= kBadDraftId;
    return is_token && can_enter(i);
  }

  struct Links {
    const Request& request;

    __device__ int64_t parent_of(int64_t i) const {
      return i < request.num_rows ? request.node_at(i).child : -1;
    }
    __device__ int64_t first_child(int64_t i) const { return request.node_at(i).first_child; }
    __device__ void set_first_child(int64_t i, int64_t child) const {
      request.node_at(i).first_child = child;
    }
    __device__ void set_next_sibling(int64_t i, int64_t sibling) const {
      request.node_at(i).next_sibling = sibling;
    }
  };

  // Rows from the first bad parent on are dropped; the anchor stays.
  __device__ void link() {
    if (threadIdx.x == 0) shared.first_bad = INT32_MAX;
    __syncthreads();
    for (int64_t i = threadIdx.x; p.parents && i < num_rows; i += kWalkBlock) {
      if (is_bad_parent(parent(i), i)) atomicMin(&shared.first_bad, static_cast<int32_t>(i));
    }
    __syncthreads();
    if (shared.first_bad < num_rows) {
      bits |= kBadTree;
      num_rows = shared.first_bad > 1 ? shared.first_bad : 1;
    }
    for (int64_t i = threadIdx.x; i < num_rows; i += kWalkBlock) {
      TreeNode& node = node_at(i);
      node.first_child = node.next_sibling = -1;
      node.depth = i == 0 ? 0 : -1;
      // A draft that is not usable is rejected, whatever its value: the law stays as it is.
      node.child = p.parents && i > 0 && is_draft_usable(i) ? parent(i) : -1;
    }
    __syncthreads();
    if (!p.parents || warp_index() != 0) return;
    for (int64_t base = (num_rows - 1) / kWarpSize * kWarpSize; base >= 0; base -= kWarpSize) {
      link_children(Links{*this}, base);
    }
  }

  __device__ void set_share(int64_t child, float share, float rest) const {
    __syncthreads();  // the ones before have been read
    if (threadIdx.x == 0) {
      node_at(child).share = share;
      node_at(child).rest = rest;
    }
    __syncthreads();
  }

  // The list of a sparse q as the rejected children have left it.
  __device__ void settle(const Node& node) const {
    if (is_dense()) return;
    const int j = static_cast<int>(threadIdx.x);
    __syncthreads();  // the list before has been read
    if (j < node.row.num_listed) {
      const Listed listed = c.listed[(first + node.i) * c.list_width + j];
      shared.listed[j] = listed;
      shared.taken[j] = taken_at(c, first, node.first_child, node.end_child, listed.id, listed.q);
    }
    __syncthreads();
  }

  __device__ float mass(const Node& node) const {  // the sum of w
    const TargetRow& row = node.row;
    if (row.only_id >= 0) {
      return residual_weight(1.0f, taken(node, row.only_id).taken, node.scale);
    }
    if (is_dense()) {
      return sum_over_kept(row, [&](int64_t id, float z) {
        return residual_weight(row.target.prob(z, id), taken(node, id).taken, node.scale);
      });
    }
    OrderedSum listed, sum;
    for (int j = 0; j < row.num_listed; ++j) {
      listed.add(shared.listed[j].p);
      sum.add(residual_weight(shared.listed[j].p, shared.taken[j].taken, node.scale));
    }
    const float rest = 1.0f - listed.value();
    return sum.value() + (rest > 0.0f ? node.scale * rest : 0.0f);
  }

  __device__ float sum_of_drawn(const Node& node) const {
    if (is_dense()) {
      const IdRange ids{0, p.options.vocab_size};
      return sum_over_ids<kWalkBlock>(shared.nodes, ids, [&](int64_t first_id) {
        float sum = 0.0f;
        for (int64_t id = first_id; id < first_id + kLseBlock && id < ids.last; ++id) {
          sum += taken(node, id).drawn;
        }
        return sum;
      });
    }
    OrderedSum sum;
    for (int j = 0; j < node.row.num_listed; ++j) sum.add(shared.taken[j].drawn);
    return sum.value();
  }

  template <class F>
  __device__ void for_each_recorded(const TargetRow& row, F f) const {
    const Recorded* recorded = recorded_of(c, row.row);
    OrderedSum listed;
    for (int j = 0; j < row.num_recorded; ++j) {
      const float prob = row.target.prob(recorded[j].value, recorded[j].id);
      if (!row.target.keeps(recorded[j].value, recorded[j].id)) continue;
      listed.add(prob);
      f(recorded[j].id, prob);
    }
    const float others = 1.0f - listed.value();
    if (row.rest.id >= 0) f(row.rest.id, others > 0.0f ? others : 0.0f);
  }

  template <class F>
  __device__ void for_each_kept_of_block(const TargetRow& row, int64_t first_id, F f) const {
    const IdRange ids = id_range(p.options);
    if (first_id >= ids.last || first_id + kLseBlock <= ids.first) return;
    const WalkColumn column{&shared.columns[0][threadIdx.x]};
    column.read(c.logits(), row.source, ids, first_id);
    for (int k = 0; k < kLseBlock; ++k) {
      if (row.target.keeps(column[k], first_id + k)) f(first_id + k, column[k]);
    }
  }

  bool is_sampled_;
};

}  // namespace dflash
