// commit: appends what a step emitted to each request's tokens and moves its lengths on.
//
//   grid   num_request_ctas          one warp per request
//   block  kRequestsPerCta * 32
//   smem   none
//   reads  emitted once, coalesced; a request's stop ids once per 32 tokens
//
// Each lane holds one emitted token and finds by itself whether it is valid, fits and stops; the
// first lane that ends the list decides, so a list of up to 32 tokens takes two ballots.
//
// Reference: python/dflash_ops/reference/loop.py

#include "device/warp.cuh"
#include "loop/cuda/launch.h"
#include "loop/plan.h"

namespace dflash {
namespace {

__device__ bool is_stop(const CommitParams& p, int64_t state_row, int64_t token) {
  bool is_found = false;
  for (int64_t s = 0; s < p.stop_ids.num_cols; ++s) {
    is_found |= p.stop_ids(state_row, s) == token;
  }
  return is_found;
}

// Appends to state row r what it may keep of request b's tokens; returns how many.
__device__ int64_t append(const CommitParams& p, int64_t b, int64_t r, int64_t length,
                          int32_t& bits) {
  const int64_t num_emitted = p.num_emitted[b];
  if (num_emitted < 0 || num_emitted > p.emitted.num_cols) {
    bits |= kOutOfRange;
    return 0;
  }
  const int64_t min_length = p.min_lens ? p.min_lens[r] : 0;
  const int64_t max_length = p.max_lens ? p.max_lens[r] : INT64_MAX;
  const int64_t limit = max_length < p.capacity ? max_length : p.capacity;

  int64_t count = 0;
  bool is_finished = false;
  for (bool is_open = true; is_open && count < num_emitted;) {
    const int64_t i = count + lane_index();
    const bool fits = i < num_emitted && length + i < limit;
    const int64_t token = fits ? p.emitted(b, i) : -1;
    const bool stops = token >= 0 && length + i + 1 >= min_length && is_stop(p, r, token);
    const int num_valid = first_lane(token < 0), stop_lane = first_lane(stops);
    if (stop_lane < num_valid) is_finished = true;
    const int num_kept = is_finished ? stop_lane + 1 : num_valid;
    if (lane_index() < num_kept) p.tokens.set(r, length + i, token);

    count += num_kept;
    is_open = num_kept == kWarpSize && !is_finished;
    const bool is_cut = count < num_emitted && length + count < limit;
    if (!is_open && !is_finished && is_cut) bits |= kBadDraftId;
  }
  const bool is_full = length + count >= limit;
  if (is_full && !is_finished && p.capacity < max_length) bits |= kBoundTooSmall;
  if ((is_full || is_finished) && lane_index() == 0) p.finished[r] = true;
  return count;
}

__device__ int64_t commit_request(const CommitParams& p, int64_t b, int32_t& bits) {
  const int64_t r = p.requests[b];
  if (r < 0) {
    bits |= p.requests.is_bad(b) ? kOutOfRange : 0;
    return 0;
  }
  const RowRange rows = row_range(p.cu_rows, b, INT64_MAX);
  const RowRange verify = p.cu_verify ? row_range(p.cu_verify, b, INT64_MAX) : rows;
  const int64_t length = p.lengths.now[r], ctx_len = p.ctx_lens.now[r];
  const bool was_finished = p.finished[r];
  __syncwarp();  // every lane has read the state before one of them changes it
  const bool is_valid = rows.in_range && verify.in_range && verify.count <= rows.count &&
                        length >= 0 && length <= p.capacity;
  if (!is_valid) bits |= kOutOfRange;
  if (!is_valid || was_finished) return 0;

  const int64_t num_kept = verify.count > 0 ? append(p, b, r, length, bits) : 0;
  if (lane_index() == 0) {
    p.lengths.next.set(r, length + num_kept);
    p.ctx_lens.next.set(r, ctx_len + rows.count - verify.count + num_kept);
  }
  return num_kept;
}

__global__ void commit_kernel(const __grid_constant__ CommitParams p) {
  const int64_t b = warp_of_grid();
  if (b >= p.num_requests) return;
  int32_t bits = 0;
  const int64_t num_kept = commit_request(p, b, bits);
  if (lane_index() == 0) {
    p.num_kept.set(b, num_kept);
    p.status.add(b, bits);
  }
}

}  // namespace

cudaError_t launch_commit(const CommitParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const int64_t num_ctas = num_request_ctas(p.num_requests);
  commit_kernel<<<num_ctas, kRequestsPerCta * kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
