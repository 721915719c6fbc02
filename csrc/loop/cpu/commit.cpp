// commit: appends what a step emitted to each request's tokens and moves its lengths on.
//
// Reference: python/dflash_ops/reference/loop.py

#include <algorithm>
#include <cstdint>
#include <limits>

#include "loop/cpu/kernels.h"

namespace dflash {
namespace {

bool is_stop(const CommitParams& p, int64_t state_row, int64_t token) {
  if (!p.stop_ids || token < 0) return false;
  for (int64_t s = 0; s < p.stop_ids.num_cols; ++s) {
    if (p.stop_ids(state_row, s) == token) return true;
  }
  return false;
}

// Appends to state row r what it may keep of request b's tokens; returns how many.
int64_t append(const CommitParams& p, int64_t b, int64_t r, int64_t length, int32_t& bits) {
  int64_t num_emitted = p.num_emitted[b];
  if (num_emitted < 0 || num_emitted > p.emitted.num_cols) {
    bits |= kOutOfRange;
    return 0;
  }
  const int64_t min_length = p.min_lens ? p.min_lens[r] : 0;
  const int64_t max_length = p.max_lens ? p.max_lens[r] : std::numeric_limits<int64_t>::max();
  const int64_t limit = std::min(max_length, p.capacity);

  int64_t count = 0;
  bool is_finished = false;
  while (count < num_emitted && length + count < limit && !is_finished) {
    const int64_t token = p.emitted(b, count);
    if (token < 0) {
      bits |= kBadDraftId;
      break;
    }
    p.tokens.set(r, length + count, token);
    ++count;
    is_finished = length + count >= min_length && is_stop(p, r, token);
  }
  const bool is_full = length + count >= limit;
  if (is_full && !is_finished && p.capacity < max_length) bits |= kBoundTooSmall;
  if (is_full || is_finished) p.finished[r] = true;
  return count;
}

int64_t commit_request(const CommitParams& p, int64_t b, int32_t& bits) {
  const int64_t r = p.requests[b];
  if (r < 0) {
    bits |= p.requests.is_bad(b) ? kOutOfRange : 0;
    return 0;
  }
  constexpr int64_t kAnyRow = std::numeric_limits<int64_t>::max();
  const RowRange rows = row_range(p.cu_rows, b, kAnyRow);
  const RowRange verify = p.cu_verify ? row_range(p.cu_verify, b, kAnyRow) : rows;
  const int64_t length = p.lengths.now[r];
  const bool is_valid = rows.in_range && verify.in_range && verify.count <= rows.count &&
                        length >= 0 && length <= p.capacity;
  if (!is_valid) bits |= kOutOfRange;
  if (!is_valid || p.finished[r]) return 0;

  const int64_t num_kept = verify.count > 0 ? append(p, b, r, length, bits) : 0;
  p.lengths.next.set(r, length + num_kept);
  p.ctx_lens.next.set(r, p.ctx_lens.now[r] + rows.count - verify.count + num_kept);
  return num_kept;
}

}  // namespace

void commit_cpu(const CommitParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    int32_t bits = 0;
    p.num_kept.set(b, commit_request(p, b, bits));
    p.status.add(b, bits);
  }
}

}  // namespace dflash
