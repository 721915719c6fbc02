// Host arithmetic of rejection verification on CUDA: sizes -> workspace.
#pragma once

#include "sample/cuda/plan.h"
#include "verify/chain_params.h"

namespace dflash {

inline constexpr int kWalkBlock = kScanBlock;    // a request's CTA: one tile of ids at a time
inline constexpr int kDrawBlock = 128;           // warps that finish a draw each
inline constexpr int64_t kTargetRowBytes = 128;  // see rejection.cuh
inline constexpr int64_t kListedBytes = 16;
inline constexpr int64_t kRecordedBytes = 16;
inline constexpr int64_t kTreeNodeBytes = 64;
inline constexpr int64_t kDrawTaskBytes = 80;

// Offsets in bytes; the scan's own workspace comes first.
struct RejectionPlan {
  int64_t list_width;  // candidates per row of a sparse q; 1: of a deterministic draft
  int64_t rows;
  int64_t listed;
  int64_t recorded;
  int64_t nodes;
  int64_t tasks;
  int64_t draft_sums;
  int64_t num_draft_tiles;  // of a dense q
  int64_t num_tokens;       // that have lists of draft ids, and of these as many as there are
  int64_t num_draft_ids;
  int64_t first_draft_id;
  int64_t next_draft_id;
  int64_t workspace_bytes;
};

constexpr RejectionPlan plan_rejection(const RejectionParams& p) {
  const LogitOptions& o = p.options;
  RejectionPlan plan{};
  plan.list_width = p.q_ids ? std::max<int64_t>(1, p.q_ids.num_cols) : 1;
  if (p.logits) plan.rows = plan_sample(o.num_rows, o.vocab_start, o.num_columns).workspace_bytes;
  plan.listed = plan.rows + o.num_rows * kTargetRowBytes;
  plan.recorded = plan.listed + o.num_rows * plan.list_width * kListedBytes;
  plan.nodes = plan.recorded + (p.logits ? 0 : o.num_rows * kMaxSparseQ * kRecordedBytes);
  plan.tasks = plan.nodes + o.num_rows * kTreeNodeBytes;
  if (p.draft_to_target && !p.q_ids) {
    plan.num_tokens = o.vocab_size;
    plan.num_draft_ids = p.draft_vocab_size;
  }
  if (p.q && !p.q_ids) plan.num_draft_tiles = (p.draft_vocab_size + kTileIds - 1) / kTileIds;
  plan.draft_sums = plan.tasks + p.sampling.num_requests * kDrawTaskBytes;
  plan.first_draft_id = plan.draft_sums + 4 * o.num_rows * plan.num_draft_tiles;
  plan.next_draft_id = plan.first_draft_id + 4 * plan.num_tokens;
  plan.workspace_bytes = plan.next_draft_id + 4 * plan.num_draft_ids;
  return plan;
}

}  // namespace dflash
