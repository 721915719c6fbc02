// Rejection verification, third kernel: which drafts of each request are accepted.
//
//   grid   num_requests
//   block  kWalkBlock = 128
//   smem   35 KB
//   reads  a node's laws as it comes by. Whole rows only for sums that depend on what was decided
//          before: with a dense q, logits and q once per rejected draft that has a sibling left
//          (traversal: every one), and q once more without replacement; logits for the entropy of
//          typical
//
// Reference: python/dflash_ops/reference/rejection_tree.py

#include "verify/cuda/request.cuh"
#include "verify/cuda/stages.h"

namespace dflash {
namespace {

class Walk : Request {
 public:
  __device__ Walk(const RejectionLaunch& launch, WalkStorage& storage, int64_t request)
      : Request(launch, storage, request) {}

  __device__ void run() {
    if (num_rows > 0 && reads_draft_law(p.rule)) walk_by_laws();
    if (num_rows > 0 && !reads_draft_law(p.rule)) walk_by_target();
    finish();
  }

 private:
  // rrs, and rule token: from the anchor down, a child that passes is entered. traversal, and rule
  // block: every child is entered that its row may keep; in postorder, the first row that passes
  // ends the path. A probe visits every row, and every child as if its siblings were rejected.
  __device__ __forceinline__ void walk_by_laws() {
    const bool is_traversal = p.rule == TreeRule::kTraversal;
    float scale = 1.0f;
    bool is_back = false, is_done = false;
    for (int64_t i = 0, at = 0; i >= 0 && i < num_rows;) {
      Node node = is_back ? back_to(i) : enter(i, scale);
      const bool is_end_of_chain = c.is_chain && node.child < 0;
      int64_t accepted = -1;
      for (bool is_rejected = is_back;;) {
        if (is_rejected) reject_child(node);
        if (node.child < 0) break;
        const Tested draft = test(node, node.child);
        if (is_traversal) {
          scale = c.is_chain ? next_scale(node.scale, draft.p, draft.q)
                             : next_scale(1.0f, draft.left, node.open() * draft.q);
          is_rejected = scale <= 0.0f && !p.is_probe && !c.is_chain;
          pass(node.child, draft);
        } else {
          const float q = node.open() * draft.q;
          const float coin = toss(node.child, i, accept_prob(draft.left, q));
          if (accepted < 0 && accepts(coin, draft.left, q)) {
            accepted = node.child;
            pass(accepted, draft);
          }
          is_rejected = accepted < 0 || p.is_probe;
        }
        if (!is_rejected) break;
      }
      if (is_traversal && node.child >= 0) {
        leave(node);
        i = node.child;
        is_back = false;
        continue;
      }
      probe(node);
      bool is_end = i == at && accepted < 0;
      if (is_traversal) {
        const float probability = prefix_accept_prob(node.scale, node.mass);
        const bool is_kept = i == 0 || toss(i, parent(i), probability) < probability;
        is_end = is_kept && !is_done;
        is_done = is_done || is_kept;
      }
      if (is_end) end_at(node);
      if (is_traversal) {
        i = i == 0 || (is_done && !p.is_probe) ? -1 : parent(i);
        is_back = true;
      } else {
        if (i == at) at = accepted;
        i = p.is_probe ? (is_end_of_chain ? -1 : i + 1) : accepted;
      }
    }
  }

  // target_only: the first child passes that carries the token drawn. typical: every child that is
  // likely enough. The deepest row that can be reached ends the path, the lowest among equals.
  __device__ __forceinline__ void walk_by_target() {
    const bool is_typical = p.rule == TreeRule::kTypical;
    int64_t end = 0;
    for (int64_t i = 0, end_depth = 0; i < num_rows; ++i) {
      __syncthreads();  // depths have been written
      const int32_t depth = node_at(i).depth;
      if (depth > end_depth) {
        end = i;
        end_depth = depth;
      }
      int64_t child = node_at(i).first_child;
      if ((depth < 0 || child < 0) && !p.is_probe) continue;
      const Node node{target(i), i, 1.0f, 1.0f};
      const float least = is_typical ? typical_threshold(node.row) : 0.0f;
      for (bool has_passed = false; child >= 0; child = node_at(child).next_sibling) {
        const Tested draft = test(node, child);
        const bool passes =
            is_typical ? draft.p > least : !has_passed && token(child) == node_at(i).last_id;
        has_passed = has_passed || passes;
        if (threadIdx.x == 0) {
          if (p.is_probe && is_typical) *p.accept_probs.at<float>(first + child) = passes;
          if (passes && depth >= 0) node_at(child).depth = depth + 1;
        }
        pass(child, draft);
      }
      probe(node);
    }
    end_at(Node{target(end), end, 1.0f, 1.0f});
  }
  __device__ float typical_threshold(const TargetRow& row) const {
    float entropy = 0.0f;
    if (row.only_id < 0) {
      const float log_norm = row.target.log_norm();
      entropy = sum_over_kept(row, [&](int64_t id, float z) {
        return row.target.prob(z, id) * (log_norm - z * row.target.inv_temperature);
      });
    }
    const float least = p.typical_delta * exp_f32(-entropy);
    return least < p.typical_eps ? least : p.typical_eps;
  }

  // The coin of draft i.
  __device__ float toss(int64_t i, int64_t parent, float probability) const {
    const NoiseKey key = noise(kCoinStream, parent);
    const float coin = coin_at(key, i);
    if (p.is_probe && threadIdx.x == 0) {
      *p.accept_probs.at<float>(first + i) = probability;
      *p.coins.at<float>(first + i) = coin;
      write_counter(i, 0, i, key);
    }
    return coin;
  }
  __device__ void pass(int64_t child, const Tested& draft) const {
    if (threadIdx.x == 0) node_at(child).logprob = draft.logprob;
  }
  // The path ends at the node, all of whose children are rejected.
  __device__ void end_at(const Node& node) {
    end_ = node.i;
    keep_taken(node);
    if (threadIdx.x == 0) c.tasks[b] = draw_task(node);
  }

  // The law of the last token if the path ends at the node.
  __device__ void probe(const Node& node) const {
    if (!p.is_probe) return;
    const TargetRow& row = node.row;
    float* weights = p.weights.at<float>(first + node.i);
    const int64_t stride = p.weights.strides[1];
    if (threadIdx.x == 0) {
      write_counter(node.i, 1, -1, noise(kResidualStream, node.i));
      if (row.only_id >= 0) weights[row.only_id * stride] = 1.0f;
    }
    if (row.only_id >= 0) return;
    for (bool is_residual = true;; is_residual = false) {
      bool has_weight = false;
      for_each_kept(row, [&](int64_t id, float prob) {
        const float w = residual_weight(prob, taken(node, id).taken, node.scale);
        weights[id * stride] = is_residual ? w : prob;
        has_weight = has_weight || w >= FLT_MIN;
      });
      if (__syncthreads_or(has_weight) || !is_residual) break;
    }
  }
  __device__ void write_counter(int64_t i, int64_t which, int64_t c0, const NoiseKey& key) const {
    int64_t* to = p.counters + ((first + i) * 2 + which) * 4;
    to[0] = c0, to[1] = key.token_idx, to[2] = key.purpose, to[3] = key.anchor_idx;
  }

  __device__ void write_token(int64_t col, int64_t id, float logprob) const {
    p.emitted.set(b, col, id);
    p.logprobs.at<float>(b)[col * p.logprobs.strides[1]] = logprob;
  }
  // All but the last token, which has yet to be drawn.
  __device__ void write_path(int64_t length) const {
    for (int64_t i = end_, col = length - 1; col >= 0; i = parent(i), --col) {
      const int64_t row = first + i;
      if (col <= max_path) {
        p.accepted_rows.set(b, col, p.options.verify_rows ? p.options.verify_rows[row] : row);
      }
      if (col > 0 && col - 1 <= max_path) write_token(col - 1, token(i), node_at(i).logprob);
    }
  }
  __device__ void finish() {
    int64_t length = 0;
    for (int64_t i = num_rows > 0 ? end_ : -1; i >= 0; i = i > 0 ? parent(i) : -1) ++length;
    const int64_t count = length < max_path + 1 ? length : max_path + 1;
    if (count < length) bits |= kBoundTooSmall;  // the next accepted draft is the last token
    for (int64_t col = count + threadIdx.x; col <= p.max_path; col += kWalkBlock) {
      write_token(col, -1, 0.0f);
      p.accepted_rows.set(b, col, -1);
    }
    atomicOr(&shared.bits, bits);
    __syncthreads();
    if (threadIdx.x != 0) return;
    write_path(length);
    p.num_accepted.set(b, count > 0 ? count - 1 : 0);
    p.num_emitted.set(b, count);
    p.status.add(b, shared.bits);
    const int64_t last_col = length <= max_path + 1 ? length - 1 : -1;
    if (!c.draws_every_row()) {
      if (length == 0) c.tasks[b] = {.row = -1};
      c.tasks[b].col = last_col;
    } else if (last_col >= 0) {
      write_token(last_col, node_at(end_).last_id, node_at(end_).last_logprob);
    }
  }

  int64_t end_ = 0;  // the last row of the path
};

__global__ void __launch_bounds__(kWalkBlock)
    walk_kernel(const __grid_constant__ RejectionLaunch c) {
  __shared__ WalkStorage shared;
  Walk(c, shared, blockIdx.x).run();
}

}  // namespace

cudaError_t launch_walk(const RejectionLaunch& c, cudaStream_t stream) {
  walk_kernel<<<c.p.sampling.num_requests, kWalkBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace dflash
