// release_pages: pages behind the kept length go to the free list, in order of request and entry.
//
//   list     grid num_requests, one warp each: the entries of a request that hold a page to release
//   release  one warp: request after request, 32 entries at a time
//   smem     none
//   reads    the tables behind the kept lengths once; little else
//
// The free list has an order, and a page may have several owners in the call, so what is released
// is decided in order. Most requests release nothing: the second kernel sees 32 of them at a
// glance.
//
// Reference: python/dflash_ops/reference/state.py

#include "device/warp.cuh"
#include "kv/cuda/launch.h"

namespace dflash {
namespace {

struct PageLists {
  int64_t* entries;  // [B, max_pages]  columns of the table
  int64_t* counts;   // [B]
};

__global__ void list_pages_kernel(const __grid_constant__ ReleasePagesParams p,
                                  const __grid_constant__ PageLists lists) {
  const int64_t b = blockIdx.x, r = p.requests[b], max_pages = p.block_table.num_cols;
  int64_t count = 0;
  if (r >= 0) {
    const int64_t start = p.table_start ? p.table_start[r] : 0;
    const int64_t kept = p.keep_lens[r] > start ? p.keep_lens[r] - start : 0;
    const int64_t num_kept = kept / p.page_size + (kept % p.page_size != 0);
    for (int64_t base = num_kept; base < max_pages; base += kWarpSize) {
      const int64_t entry = base + lane_index();
      const int64_t page = entry < max_pages ? p.block_table(r, entry) : -1;
      const bool is_listed = page >= 0 && page < p.num_pages && page != p.null_page;
      const uint32_t listed = __ballot_sync(kFullMask, is_listed);
      const int before = __popc(listed & ((1u << lane_index()) - 1));
      if (is_listed) lists.entries[b * max_pages + count + before] = entry;
      count += __popc(listed);
    }
  }
  if (lane_index() != 0) return;
  lists.counts[b] = count;
  if (p.requests.is_bad(b)) p.status.add(b, kOutOfRange);
}

// Releases one entry per lane, in the order of lanes; returns what was wrong with the lane's.
// Owners are counted as if the lanes before had given up theirs; those before that could not are
// of the same page and found no room, and then neither does this one.
__device__ int32_t release(const ReleasePagesParams& p, int64_t r, int64_t entry,
                           int64_t& num_free) {
  const bool exists = entry >= 0;
  const int64_t page = exists ? p.block_table(r, entry) : -1;
  const uint32_t before = (1u << lane_index()) - 1;
  const uint32_t same = __match_any_sync(kFullMask, page);
  const int64_t stored = exists && p.ref_counts.now ? p.ref_counts.now[page] : 1;
  const int64_t num_owners = p.ref_counts.now ? stored - __popc(same & before) : 1;
  __syncwarp();  // every lane has read the owners

  const bool is_last_owner = exists && num_owners == 1;
  const int64_t place = num_free + __popc(__ballot_sync(kFullMask, is_last_owner) & before);
  const bool has_room = num_free >= 0 && place < p.capacity;
  const uint32_t without_room = __ballot_sync(kFullMask, is_last_owner && !has_room);
  const bool is_stuck = exists && (without_room & same & (before | 1u << lane_index())) != 0;
  if (is_last_owner && has_room) p.free_pages.set(place, page);
  num_free += __popc(__ballot_sync(kFullMask, is_last_owner && has_room));

  const uint32_t given_up = __ballot_sync(kFullMask, exists && num_owners >= 1 && !is_stuck);
  const bool is_first = (same & before) == 0;
  if (exists && is_first && p.ref_counts.now) {
    p.ref_counts.next.set(page, stored - __popc(given_up & same));
  }
  if (exists && !is_stuck) p.next_table.set(r, entry, p.null_page);
  __syncwarp();  // and the next 32 entries see it
  if (!exists) return 0;
  return is_stuck ? kBoundTooSmall : num_owners < 1 ? kOutOfRange : 0;
}

__global__ void release_pages_kernel(const __grid_constant__ ReleasePagesParams p,
                                     const __grid_constant__ PageLists lists) {
  int64_t num_free = p.num_free.now[0];
  for (int64_t base = 0; base < p.num_requests; base += kWarpSize) {
    const int64_t own = base + lane_index();
    const int64_t own_count = own < p.num_requests ? lists.counts[own] : 0;
    uint32_t waiting = __ballot_sync(kFullMask, own_count > 0);
    for (; waiting != 0; waiting &= waiting - 1) {
      const int lane = __ffs(static_cast<int>(waiting)) - 1;
      const int64_t b = base + lane, count = __shfl_sync(kFullMask, own_count, lane);
      const int64_t* entries = lists.entries + b * p.block_table.num_cols;
      const int64_t r = p.requests[b];
      int32_t bits = 0;
      for (int64_t first = 0; first < count; first += kWarpSize) {
        const int64_t i = first + lane_index();
        bits |= release(p, r, i < count ? entries[i] : -1, num_free);
      }
      const bool is_bad = __any_sync(kFullMask, (bits & kOutOfRange) != 0);
      const bool is_full = __any_sync(kFullMask, (bits & kBoundTooSmall) != 0);
      const int32_t all = (is_bad ? kOutOfRange : 0) | (is_full ? kBoundTooSmall : 0);
      if (lane_index() == 0) p.status.add(b, all);
    }
  }
  if (lane_index() == 0) p.num_free.next.set(0, num_free);
}

}  // namespace

cudaError_t launch_release_pages(const ReleasePagesParams& p, int64_t* workspace,
                                 cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const PageLists lists{workspace + p.num_requests, workspace};
  list_pages_kernel<<<p.num_requests, kWarpSize, 0, stream>>>(p, lists);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  release_pages_kernel<<<1, kWarpSize, 0, stream>>>(p, lists);
  return cudaGetLastError();
}

}  // namespace dflash
