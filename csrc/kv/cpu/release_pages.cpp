// release_pages: pages behind the kept length go to the free list, in order of request and entry.
//
// Reference: python/dflash_ops/reference/state.py

#include <algorithm>

#include "kv/cpu/kernels.h"

namespace dflash {
namespace {

// Gives up request b's hold on `page`; false if it must stay in the table.
bool release(const ReleasePagesParams& p, int64_t page, int32_t& bits) {
  const int64_t num_owners = p.ref_counts.now ? p.ref_counts.now[page] : 1;
  const int64_t num_free = p.num_free.now[0];
  if (num_owners < 1) {  // free already: the table is wrong
    bits |= kOutOfRange;
    return true;
  }
  if (num_owners == 1) {
    if (num_free < 0 || num_free >= p.capacity) {
      bits |= kBoundTooSmall;
      return false;
    }
    p.free_pages.set(num_free, page);
    p.num_free.next.set(0, num_free + 1);
  }
  if (p.ref_counts.now) p.ref_counts.next.set(page, num_owners - 1);
  return true;
}

}  // namespace

void release_pages_cpu(const ReleasePagesParams& p) {
  for (int64_t b = 0; b < p.num_requests; ++b) {
    int32_t bits = p.requests.is_bad(b) ? kOutOfRange : 0;
    const int64_t r = p.requests[b];
    if (r >= 0) {
      const int64_t start = p.table_start ? p.table_start[r] : 0;
      const int64_t kept = std::max<int64_t>(0, p.keep_lens[r] - start);
      const int64_t num_kept = kept / p.page_size + (kept % p.page_size != 0);
      for (int64_t entry = num_kept; entry < p.block_table.num_cols; ++entry) {
        const int64_t page = p.block_table(r, entry);
        if (page < 0 || page >= p.num_pages || page == p.null_page) continue;
        if (release(p, page, bits)) p.next_table.set(r, entry, p.null_page);
      }
    }
    p.status.add(b, bits);
  }
}

}  // namespace dflash
