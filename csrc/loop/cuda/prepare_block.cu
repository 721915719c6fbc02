// prepare_block: a drafter's input, the anchor and then masks, with positions and slots.
//
//   grid   num_request_ctas          one warp per request
//   block  kRequestsPerCta * 32
//   smem   none
//   reads  a request's page table entries once to find the rows that have a slot, once to write
//
// The block ends before its first row without a slot. So the rows are looked up first, 32 at a
// time, and written when their number is known.
//
// Reference: python/dflash_ops/reference/loop.py

#include "device/warp.cuh"
#include "loop/cuda/launch.h"
#include "loop/plan.h"

namespace dflash {
namespace {

// Rows of request b's block, its anchor's sequence index, token and state row.
struct Block {
  int64_t num_rows;
  int64_t start;
  int64_t anchor;
  int64_t state_row;
};

__device__ Block block_of(const PrepareBlockParams& p, int64_t b, int32_t& bits) {
  const int64_t r = p.requests[b];
  if (r < 0) {
    bits |= p.requests.is_bad(b) ? kOutOfRange : 0;
    return {};
  }
  int64_t num_rows = p.block_lens ? p.block_lens[b] : p.max_block;
  if (num_rows <= 0) return {};
  if (num_rows > p.max_block) {
    bits |= kBoundTooSmall;
    num_rows = p.max_block;
  }
  const int64_t start = p.ctx_lens[r];
  if (start < 0 || start >= p.tokens.num_cols) {
    bits |= kOutOfRange;
    return {};
  }
  const int64_t anchor = p.tokens(r, start);
  if (anchor < 0) {
    bits |= kBadDraftId;
    return {};
  }
  for (int64_t base = 0; base < num_rows; base += kWarpSize) {
    const int64_t i = base + lane_index();
    const int first_bad = first_lane(i < num_rows && p.pages.slot(r, start + i) < 0);
    if (first_bad == kWarpSize) continue;
    bits |= kOutOfRange;
    num_rows = base + first_bad;
  }
  return {num_rows, start, anchor, r};
}

__global__ void prepare_block_kernel(const __grid_constant__ PrepareBlockParams p) {
  const int64_t b = warp_of_grid();
  if (b >= p.num_requests) return;
  int32_t bits = 0;
  const Block block = block_of(p, b, bits);
  const int64_t num_drafts = drafts_of_block(block.num_rows, p.samples_from_anchor);
  const int64_t max_drafts = drafts_of_block(p.max_block, p.samples_from_anchor);
  const int64_t first_row = b * p.max_block + (p.samples_from_anchor ? 0 : 1);

  for (int64_t i = lane_index(); i < p.max_block; i += kWarpSize) {
    const bool is_row = i < block.num_rows;
    p.ids.set(b, i, is_row && i == 0 ? block.anchor : p.mask_id);
    p.positions.set(b, i, is_row ? block.start + i : -1);
    p.slots.set(b, i, is_row ? p.pages.slot(block.state_row, block.start + i) : -1);
    if (i < max_drafts) p.draft_rows.set(b, i, i < num_drafts ? first_row + i : -1);
  }
  if (lane_index() == 0) {
    p.num_drafts.set(b, num_drafts);
    p.status.add(b, bits);
  }
}

}  // namespace

cudaError_t launch_prepare_block(const PrepareBlockParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const int64_t num_ctas = num_request_ctas(p.num_requests);
  prepare_block_kernel<<<num_ctas, kRequestsPerCta * kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
