// Requests, their state rows and the pages that hold their keys: shared by attention, kv and loop.
#pragma once

#include "common/views.h"

namespace dflash {

// Request b of a call keeps its state in row req_rows[b] of the [R] tensors.
struct RequestRows {
  IndexView req_rows;      // [B]?  -1: padded; absent: the same numbers
  int64_t num_state_rows;  // R

  // The state row of request b; -1 if padded or outside 0 .. R - 1.
  constexpr int64_t operator[](int64_t b) const {
    const int64_t row = req_rows ? req_rows[b] : b;
    return row >= 0 && row < num_state_rows ? row : -1;
  }
  constexpr bool is_bad(int64_t b) const {  // status bit 4; a padded request is not bad
    return (req_rows ? req_rows[b] : b) >= num_state_rows || (req_rows && req_rows[b] < -1);
  }
};

// Lengths come as keys before this step's rows (ctx_lens) or including them (kv_lens).
struct Lengths {
  IndexView lens;     // [R]
  bool includes_new;  // kv_lens

  constexpr int64_t before(int64_t state_row, int64_t num_new) const {
    return lens[state_row] - (includes_new ? num_new : 0);
  }
};

struct PageTable {
  IndexTable block_table;  // [R, max_pages]
  IndexView table_start;   // [R]?  sequence index of the first entry of a table row; absent: 0
  int64_t num_pages;
  int64_t page_size;
  int64_t null_page;  // an entry of this value holds nothing, like one out of range

  // The page that entry `col` of a table row names; -1: there is none.
  constexpr int64_t page(int64_t state_row, int64_t col) const {
    if (col < 0 || col >= block_table.num_cols) return -1;
    const int64_t page = block_table(state_row, col);
    return page < 0 || page >= num_pages || page == null_page ? -1 : page;
  }

  // The physical slot, page * page_size + offset, of sequence index `seq_idx`; -1: there is none.
  constexpr int64_t slot(int64_t state_row, int64_t seq_idx) const {
    const int64_t idx = seq_idx - (table_start ? table_start[state_row] : 0);
    const int64_t page_idx = idx < 0 ? -1 : page(state_row, idx / page_size);
    return page_idx < 0 ? -1 : page_idx * page_size + idx % page_size;
  }
};

}  // namespace dflash
