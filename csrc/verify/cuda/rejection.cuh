// What the kernels of rejection verification tell each other.
//
//   sample_scan   [Tv, tiles]  the log-sum-exp and the best candidates of each tile of a row
//   draft_sums    [Tv, tiles]  the sum of each tile of a dense q
//   link_drafts   [Vd]         which draft ids stand for a token, if the drafter has ids of its own
//   target_rows   [Tv]         the target's law of each row; the law that its drafts came from
//   walk          [B]          which drafts are accepted; what the last token is drawn from
//   draw_scan     [B, tiles]   the best candidate of each tile for the last token
//   draw_finish   [B]          the last token
//
// target_only draws at every row, [Tv] for [B], before it walks.
#pragma once

#include "sample/cuda/scan.cuh"
#include "verify/cuda/plan.h"
#include "verify/rejection.h"
#include "verify/tree_params.h"

namespace dflash {

// A row's own part: whether the walk may enter it, and the two laws that meet there.
struct TargetRow {
  int64_t row;  // of Tv
  RowSource source;
  TargetLaw target;
  int64_t only_id;  // of a row without a finite logit: all of the law; else -1
  float lse;        // at temperature 1
  float q_total;    // of a dense q
  int32_t status;   // of the row itself
  int32_t num_listed;
  StoredBest rest;       // of a record: the best of the ids that it does not list; id -1: none
  int32_t num_recorded;  // ids that it lists
  int32_t missing;       // status bits of what testing the draft asks and the record does not tell
  bool can_draw;         // else a path ends before the row
  bool can_enter;
  bool has_good_q;
};

// An id of a record, with its logit.
struct Recorded {
  int64_t id;
  float value;
};

// A candidate of a sparse q, without duplicates.
struct Listed {
  int64_t id;
  float q;  // normalised; of the row that the path ends at, what the rejected drafts have taken
  float p;
};

// A row as a node of the walk. Local rows; -1: none.
struct TreeNode {
  int64_t first_child;  // usable drafts only
  int64_t next_sibling;
  int64_t child;  // to be tested next
  int64_t last_id;
  float scale;
  float mass;
  float share;  // of the law that this draft, rejected, came from: what it has taken of p
  float rest;   // of that law without this draft
  float logprob;
  float last_logprob;
  int32_t depth;
};

enum class QKind : int32_t { kNone, kListed, kDense };  // kNone: nothing is taken of p

// A token to be drawn, after `row`.
struct DrawTask {
  int64_t row;  // of Tv; -1: there is none
  int64_t b;
  int64_t first;        // of the request's rows
  int64_t first_child;  // the rejected drafts ..
  int64_t end_child;    // .. and the first that is not
  int64_t col;          // of `emitted`; -1: the walk asks for it
  NoiseKey noise;
  float scale;
  QKind q;
};

struct RejectionLaunch {
  VerifyTreeParams p;
  bool is_chain;  // each row's child is the next; a deterministic draft has the law that is one
                  // there
  SampleLaunch scan;
  TargetRow* rows;          // [Tv]
  Listed* listed;           // [Tv, list_width]
  Recorded* recorded;       // [Tv, 64]?  instead of logits
  TreeNode* nodes;          // [Tv]
  DrawTask* tasks;          // [B]
  float* draft_sums;        // [Tv, num_draft_tiles]  NaN: there is a bad q in the tile
  int64_t num_draft_tiles;  // 0: q is not dense
  int64_t list_width;       // K of a sparse q, at least 1
  int32_t* first_draft_id;  // [vocab_size]?  which stands for the token; with a dense q alone
  int32_t* next_draft_id;   // [Vd]?          which stands for the same; -1: none

  __device__ const SampleLogitsParams& logits() const { return scan.p; }
  __host__ __device__ bool draws_every_row() const { return p.rule == TreeRule::kTargetOnly; }
};
static_assert(sizeof(TargetRow) == kTargetRowBytes && sizeof(Listed) == kListedBytes);
static_assert(sizeof(Recorded) == kRecordedBytes);
static_assert(sizeof(TreeNode) == kTreeNodeBytes && sizeof(DrawTask) == kDrawTaskBytes);

// Whether the drafts of a request were drawn from a q.
__device__ inline bool is_sampled(const RejectionParams& p, int64_t b) {
  return p.q && (!p.draft_kind || p.draft_kind[b] != 0);
}

// local: the row after which a token is drawn.
__device__ inline NoiseKey request_noise(const SamplingOptions& o, Stream stream, int64_t b,
                                         int64_t first, int64_t local) {
  const int64_t seed = o.seeds ? o.seeds[o.requests[b]] : 0;
  return cycle_noise(stream, seed, o.positions[first + local] + 1, o.positions[first], local);
}

__device__ inline const Recorded* recorded_of(const RejectionLaunch& c, int64_t row) {
  return c.recorded + row * kMaxSparseQ;
}

__device__ inline float logit_of(const RejectionLaunch& c, const TargetRow& row, int64_t id) {
  if (c.recorded != nullptr) {
    const Recorded* recorded = recorded_of(c, row.row);
    for (int j = 0; j < row.num_recorded; ++j) {
      if (recorded[j].id == id) return recorded[j].value;
    }
    return kMinusInf;
  }
  return logit_at(c.logits(), row.source, id_range(c.p.options), id);
}

__device__ inline float target_prob(const RejectionLaunch& c, const TargetRow& row, int64_t id) {
  if (row.only_id >= 0) return id == row.only_id ? 1.0f : 0.0f;
  return row.target.prob(logit_of(c, row, id), id);
}

// The probability of a token in a dense q. Of draft ids that stand for it, and form a list in no
// order, the lowest comes first.
__device__ inline float dense_q(const RejectionLaunch& c, int64_t row, float total, int64_t id) {
  const float* q = c.p.q.at<float>(row);
  const int64_t stride = c.p.q.strides[1];
  if (!c.p.draft_to_target) return q[id * stride] / total;
  float sum = 0.0f;
  for (int32_t last = -1;;) {
    int32_t next = INT32_MAX;
    for (int32_t j = c.first_draft_id[id]; j >= 0; j = c.next_draft_id[j]) {
      if (j > last && j < next) next = j;
    }
    if (next == INT32_MAX) return sum / total;
    sum += q[next * stride];
    last = next;
  }
}

// The law q of a row's drafts after some were rejected: what is left of it, and what the rejected
// ones have taken of p.
struct Taken {
  float drawn;
  float taken;
};

// Of one id, which had probability q at first; drafts `child` .. end_child - 1 were rejected.
__device__ inline Taken taken_at(const RejectionLaunch& c, int64_t first, int64_t child,
                                 int64_t end_child, int64_t id, float q) {
  Taken at{q, 0.0f};
  while (child != end_child) {
    const TreeNode& node = c.nodes[first + child];
    at.taken += node.share * at.drawn;
    if (!c.p.has_replacement) {
      if (c.p.tokens[first + child] == id) at.drawn = 0.0f;
      at.drawn /= node.rest;
    }
    child = node.next_sibling;
  }
  return at;
}

}  // namespace dflash
