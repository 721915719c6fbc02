// What every backend of the loop ops receives: no torch, no CUDA.
#pragma once

#include "common/paged.h"
#include "common/views.h"

namespace dflash {

// An index tensor that is read and then overwritten in place.
struct IndexState {
  IndexView now;
  IndexOut next;
};

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

}  // namespace dflash
