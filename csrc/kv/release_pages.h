// release_pages, torch side: checks, the same for every backend. A backend is a function
// void run(const ReleasePagesParams&, const Tensor& block_table).
#pragma once

#include "common/check.h"
#include "kv/params.h"

namespace dflash {

template <auto kRun>
void release_pages(const Tensor& block_table, const Tensor& free_pages, const Tensor& num_free,
                   const Tensor& keep_lens, const OptionalTensor& ref_counts,
                   const OptionalTensor& req_rows, const OptionalTensor& table_start,
                   int64_t page_size, int64_t num_pages, int64_t null_page,
                   const OptionalTensor& status) {
  const Checks checks{"release_pages", block_table};
  ReleasePagesParams p{};
  p.block_table = checks.index_table("block_table", block_table, "[R, max_pages]", {-1, -1});
  const int64_t num_state_rows = block_table.size(0);
  p.next_table = checks.index_out("block_table", block_table, "[R, max_pages]",
                                  {num_state_rows, block_table.size(1)});
  p.free_pages = checks.index_out("free_pages", free_pages, "[capacity]", {-1});
  p.capacity = free_pages.size(0);
  p.num_free = {checks.index("num_free", num_free, "[1]", 1),
                checks.index_out("num_free", num_free, "[1]", {1})};
  p.keep_lens = checks.index("keep_lens", keep_lens, "[R]", num_state_rows);
  checks.at_least<int64_t>("page_size", page_size, 1);
  checks.at_least<int64_t>("num_pages", num_pages, 0);
  if (ref_counts) {
    p.ref_counts = {checks.index("ref_counts", *ref_counts, "[num_pages]", num_pages),
                    checks.index_out("ref_counts", *ref_counts, "[num_pages]", {num_pages})};
  }
  p.requests = {checks.index("req_rows", req_rows, "[B]", -1), num_state_rows};
  p.num_requests = req_rows ? req_rows->size(0) : num_state_rows;
  p.table_start = checks.index("table_start", table_start, "[R]", num_state_rows);
  p.status = checks.status(status, "[B]", p.num_requests);
  p.num_pages = num_pages;
  p.page_size = page_size;
  p.null_page = null_page;
  kRun(p, block_table);
}

}  // namespace dflash
