// What every backend of the kv ops receives: no torch, no CUDA.
#pragma once

#include "common/paged.h"
#include "common/views.h"

namespace dflash {

// Scales of a quantised cache: value = scale * stored. Where a dimension is shared its stride is 0.
struct KvScale {
  float* data;  // [num_pages, page_size, Hkv]; null: 1
  int64_t page_stride;
  int64_t offset_stride;
  int64_t head_stride;
  bool is_dynamic;  // one per row and head, chosen and written when the row is; else only read

  constexpr float* at(int64_t page, int64_t offset, int64_t head) const {
    return data + page * page_stride + offset * offset_stride + head * head_stride;
  }
};

// One cache, keys or values: pages of rows of heads.
struct KvCache {
  ArrayOut<4> pages;  // [num_pages, page_size, Hkv, D]
  KvScale scale;
  int64_t head_dim;
};

struct RopeAppendKvParams {
  ArrayView<3> q;        // [T, Hq, Dk]
  ArrayView<3> k;        // [T, Hkv, Dk]
  ArrayView<3> v;        // [T, Hkv, Dv]
  IndexView positions;   // [T]   row of cos_sin; -1: a padded row
  IndexView slots;       // [T]   page * page_size + offset; -1: not stored
  ArrayView<2> cos_sin;  // [max_positions, rotary_dim]?  cosines, then sines, of each pair
  ArrayView<1> q_norm;   // [Dk]?
  ArrayView<1> k_norm;   // [Dk]?
  StatusView status;     // [T]?
  int64_t num_rows;      // T
  int64_t num_q_heads;   // Hq
  int64_t num_kv_heads;  // Hkv
  int64_t num_pages;
  int64_t page_size;
  int64_t max_positions;
  int64_t rotary_dim;  // at most Dk
  float eps;
  bool is_neox;  // pairs (i, i + rotary_dim / 2); else (2i, 2i + 1)

  KvCache k_cache;
  KvCache v_cache;
  ArrayOut<3> out;  // [T, Hq, Dk]  rotated q
};

// Rows are dealt to this many lanes by their slot, and a lane takes its rows in ascending order: so
// of two rows on one slot the higher stays, whoever runs the lanes.
inline constexpr int64_t kNumRowLanes = 64;

// The rows of a paged tensor as bytes, whatever they mean: `num_pieces` runs of `piece_bytes`.
struct PagedBytes {
  char* data;  // null: the argument is absent
  int64_t page_stride;
  int64_t offset_stride;
  int64_t piece_stride;
  int64_t num_pieces;
  int64_t piece_bytes;
};

// Keys, values and their scales; a row of each moves with the others.
struct PagedLayer {
  PagedBytes tensors[4];
  int64_t group;
};

struct CompactKvParams {
  const PagedLayer* layers;  // [num_layers]
  const PageTable* groups;   // [num_groups]
  IndexTable accepted_rows;  // [B, P]   packed rows of the anchor and the accepted drafts, then -1
  IndexView cu_rows;         // [B + 1]
  IndexView num_kept;        // [B]?     absent: all that are not -1
  RequestRows requests;
  Lengths lengths;    // as they were when the rows were stored
  StatusView status;  // [B]?
  int64_t num_layers;
  int64_t num_groups;
  int64_t num_requests;  // B
};

struct ReleasePagesParams {
  IndexTable block_table;  // [R, max_pages]
  IndexOut next_table;     // the same memory: released entries become null_page
  IndexOut free_pages;     // [capacity]      written from num_free on
  int64_t capacity;
  IndexState num_free;    // [1]
  IndexState ref_counts;  // [num_pages]?    owners of each page; absent: one each
  IndexView keep_lens;    // [R]             sequence indices below this keep their page
  IndexView table_start;  // [R]?
  RequestRows requests;
  StatusView status;     // [B]?
  int64_t num_requests;  // B
  int64_t num_pages;
  int64_t page_size;
  int64_t null_page;
};

struct StateLayer {
  char* states;            // [num_slots, ...]  rows of row_bytes
  const char* row_states;  // [T, ...]
  int64_t state_stride;    // bytes
  int64_t row_stride;      // bytes
  int64_t row_bytes;
};

struct CommitStateParams {
  const StateLayer* layers;  // [num_layers]
  IndexTable accepted_rows;  // [B, P]
  IndexView num_kept;        // [B]?
  IndexView state_slots;     // [R]?   slot of each state row; absent: the same numbers
  RequestRows requests;
  StatusView status;  // [B]?
  int64_t num_layers;
  int64_t num_requests;  // B
  int64_t num_rows;      // T
  int64_t num_slots;
};

}  // namespace dflash
