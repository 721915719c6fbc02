// What every backend of verify_chain receives, and verify_tree in large part: no torch, no CUDA.
#pragma once

#include "sample/params.h"

namespace dflash {

inline constexpr int64_t kMaxSparseQ = 64;  // candidates per row of a sparse q

// What lm_head_verify says of each row, and the ids that it was asked about.
struct HeadRecord {
  IndexTable ids;             // [Tv, K]
  ArrayView<2> values;        // [Tv, K]
  ArrayView<1> lse;           // [Tv]
  ArrayView<1> tempered_lse;  // [Tv]
  IndexView rest_ids;         // [Tv]
  ArrayView<1> rest_values;   // [Tv]
  ArrayView<1> rest_keys;     // [Tv]
  ArrayView<2> top_values;    // [Tv, 64]
  IndexTable top_ids;         // [Tv, 64]
  const bool* covered;        // [Tv]
  int64_t covered_stride;
};

struct RejectionParams {
  IndexView tokens;     // [Tv]  a request's anchor, then its drafts
  ArrayView<2> logits;  // [num_source_rows, V]?  absent: there is a record
  HeadRecord record;
  LogitOptions options;
  SamplingOptions sampling;
  ArrayView<2> q;             // [Tv, K] or [Tv, Vd]?  fp32; row i: the law of the drafts after it
  IndexTable q_ids;           // [Tv, K]?   absent: q is dense
  IndexView draft_to_target;  // [Vd]?      absent: the drafter has the target's ids
  int64_t draft_vocab_size;   // Vd
  IndexView draft_kind;       // [B]?       0: deterministic; absent: sampled if there is a q
  int64_t max_path;
  StatusView status;  // [B]?

  IndexOut emitted;        // [B, max_path + 1]
  IndexOut num_accepted;   // [B]
  IndexOut num_emitted;    // [B]
  IndexOut accepted_rows;  // [B, max_path + 1]
  ArrayOut<2> logprobs;    // [B, max_path + 1]  fp32

  bool is_probe;
  ArrayOut<1> accept_probs;  // [Tv]        of the draft in each row
  ArrayOut<1> coins;         // [Tv]        of the draft in each row
  int64_t* counters;         // [Tv, 2, 4]  contiguous: of the coin; of the residual's noise
  ArrayOut<2> weights;       // [Tv, vocab_size]  of the last token if the path ends at a row
};

// The token that an id of q stands for; -1: none.
static constexpr int64_t target_id(const RejectionParams& p, int64_t draft_id) {
  if (draft_id < 0 || draft_id >= p.draft_vocab_size) return -1;
  const int64_t id = p.draft_to_target ? p.draft_to_target[draft_id] : draft_id;
  return id >= 0 && id < p.options.vocab_size ? id : -1;
}

// Two requests have a row in common: cu_verify is broken.
static constexpr bool overlap(const RowRange& a, const RowRange& b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

struct VerifyChainParams : RejectionParams {
  bool is_block;  // rule
};

}  // namespace dflash
