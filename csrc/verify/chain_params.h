// What every backend of verify_chain receives, and verify_tree in large part: no torch, no CUDA.
#pragma once

#include "sample/params.h"

namespace dflash {

inline constexpr int64_t kMaxSparseQ = 64;  // candidates per row of a sparse q

struct RejectionParams {
  IndexView tokens;     // [Tv]  a request's anchor, then its drafts
  ArrayView<2> logits;  // [num_source_rows, V]
  LogitOptions options;
  SamplingOptions sampling;
  ArrayView<2> q;    // [Tv, K] or [Tv, vocab_size]?  fp32; row i: the law of the drafts after it
  IndexTable q_ids;  // [Tv, K]?   absent: q is dense
  IndexView draft_kind;  // [B]?       0: deterministic; absent: sampled if there is a q
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

struct VerifyChainParams : RejectionParams {
  bool is_block;  // rule
};

}  // namespace dflash
