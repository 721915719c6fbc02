// prepare_block: a drafter's input, the anchor and then masks, with positions and slots.
//
// Reference: python/dflash_ops/reference/loop.py

#include <algorithm>

#include "loop/cpu/kernels.h"

namespace dflash {
namespace {

// Rows of request b's block, and its anchor's sequence index and state row.
struct Block {
  int64_t num_rows;
  int64_t start;
  int64_t state_row;
};

Block block_of(const PrepareBlockParams& p, int64_t b, int32_t& bits) {
  const int64_t r = p.requests[b];
  if (r < 0) {
    bits |= p.requests.is_bad(b) ? kOutOfRange : 0;
    return {};
  }
  int64_t num_rows = p.block_lens ? p.block_lens[b] : p.max_block;
  if (num_rows <= 0) return {};
  if (num_rows > p.max_block) bits |= kBoundTooSmall;
  num_rows = std::min(num_rows, p.max_block);

  const int64_t start = p.ctx_lens[r];
  if (start < 0 || start >= p.tokens.num_cols) {
    bits |= kOutOfRange;
    return {};
  }
  if (p.tokens(r, start) < 0) {
    bits |= kBadDraftId;
    return {};
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    if (p.pages.slot(r, start + i) >= 0) continue;
    bits |= kOutOfRange;
    num_rows = i;
  }
  return {num_rows, start, r};
}

}  // namespace

void prepare_block_cpu(const PrepareBlockParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    int32_t bits = 0;
    const Block block = block_of(p, b, bits);
    for (int64_t i = 0; i < p.max_block; ++i) {
      const bool is_row = i < block.num_rows;
      p.ids.set(b, i, is_row && i == 0 ? p.tokens(block.state_row, block.start) : p.mask_id);
      p.positions.set(b, i, is_row ? block.start + i : -1);
      p.slots.set(b, i, is_row ? p.pages.slot(block.state_row, block.start + i) : -1);
    }
    const int64_t num_drafts = drafts_of_block(block.num_rows, p.samples_from_anchor);
    const int64_t first_row = b * p.max_block + (p.samples_from_anchor ? 0 : 1);
    p.num_drafts.set(b, num_drafts);
    for (int64_t j = 0; j < drafts_of_block(p.max_block, p.samples_from_anchor); ++j) {
      p.draft_rows.set(b, j, j < num_drafts ? first_row + j : -1);
    }
    p.status.add(b, bits);
  }
}

}  // namespace dflash
