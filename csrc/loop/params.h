// What every backend of the loop ops receives: no torch, no CUDA.
#pragma once

#include "common/paged.h"
#include "common/views.h"

namespace dflash {

struct FlagState {
  bool* data;
  int64_t stride;

  constexpr bool& operator[](int64_t i) const { return data[i * stride]; }
};

struct CommitParams {
  IndexOut tokens;        // [R, capacity]  written from lengths[r] on
  IndexState lengths;     // [R]            tokens in the buffer; the last is the anchor
  IndexState ctx_lens;    // [R]            keys in the cache
  FlagState finished;     // [R]
  IndexTable emitted;     // [B, E]
  IndexView num_emitted;  // [B]
  IndexView cu_rows;      // [B + 1]
  IndexView cu_verify;    // [B + 1]?     absent: every row is verified
  RequestRows requests;
  IndexTable stop_ids;  // [R, S]?        < 0: none
  IndexView min_lens;   // [R]?           a stop token counts from this many tokens on
  IndexView max_lens;   // [R]?           absent: capacity
  StatusView status;    // [B]?
  int64_t capacity;
  int64_t num_requests;  // B

  IndexOut num_kept;  // [B]
};

struct PrepareBlockParams {
  IndexTable tokens;   // [R, capacity]
  IndexView ctx_lens;  // [R]      keys in the cache: the sequence index of the anchor
  PageTable pages;
  RequestRows requests;
  IndexView block_lens;  // [B]?     rows of the block, anchor included; absent: max_block
  StatusView status;     // [B]?
  int64_t num_requests;  // B
  int64_t max_block;
  int64_t mask_id;
  bool samples_from_anchor;  // the anchor's row drafts, too: a row drafts the token after it

  IndexOut ids;         // [B, max_block]  padding: mask_id
  IndexOut positions;   // [B, max_block]  padding: -1
  IndexOut slots;       // [B, max_block]
  IndexOut draft_rows;  // [B, max_drafts] row of [B * max_block] that drafts; padding: -1
  IndexOut num_drafts;  // [B]
};

// Drafts of a block of `num_rows` rows, at most.
constexpr int64_t drafts_of_block(int64_t num_rows, bool samples_from_anchor) {
  return num_rows - (samples_from_anchor || num_rows == 0 ? 0 : 1);
}

}  // namespace dflash
