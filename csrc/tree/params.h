// What every backend of the tree ops receives: no torch, no CUDA.
#pragma once

#include "common/views.h"

namespace dflash {

// Rows of a bit mask: bit j % 32 of word j / 32 says whether the row may see row j of its request.
struct MaskOut {
  uint32_t* data;  // [T, W]
  int64_t row_stride;
  int64_t word_stride;
  int64_t num_words;

  constexpr uint32_t& word(int64_t row, int64_t w) const {
    return data[row * row_stride + w * word_stride];
  }
};

struct TreeMetadataParams {
  IndexView parents;     // [T]
  IndexView cu_rows;     // [B + 1]
  IndexView tree_nodes;  // [B]?   <= 0: a chain
  StatusView status;     // [B]?
  int64_t num_rows;      // T
  int64_t num_requests;  // B
  int64_t max_rows;      // most nodes of a tree

  IndexOut depth;         // [T]
  MaskOut mask;           // [T, ceil(max_rows / 32)]
  IndexOut first_child;   // [T]   local row, -1: none
  IndexOut next_sibling;  // [T]
};

struct TreeToPathsParams {
  IndexView parents;     // [T]
  IndexView cu_rows;     // [B + 1]
  StatusView status;     // [B]?
  int64_t num_rows;      // T
  int64_t num_requests;  // B
  int64_t max_paths;
  int64_t path_length;  // max_path + 1

  IndexOut paths;  // [B * max_paths, max_path + 1]  seen as [B, max_paths, ..] by the strides:
  int64_t request_stride;  // of paths
  IndexOut num_paths;      // [B]
};

struct TreeFromRetrieveParams {
  IndexTable next_token;    // [B, N]  first child, -1: none
  IndexTable next_sibling;  // [B, N]
  StatusView status;        // [B]?
  int64_t num_requests;     // B
  int64_t num_nodes;        // N

  IndexOut parents;  // [B, N]
};

// Who may see whom, as bits of int32 words or as bools.
struct MaskView {
  const void* data;  // [T, W] words, or [T, N] bools; null: absent
  int64_t row_stride;
  int64_t col_stride;
  int64_t num_cols;  // N, or 32 * W
  bool is_bits;

  constexpr bool operator()(int64_t row, int64_t j) const {
    if (j >= num_cols) return false;
    if (!is_bits) return static_cast<const bool*>(data)[row * row_stride + j * col_stride];
    const auto* words = static_cast<const uint32_t*>(data);
    return words[row * row_stride + j / 32 * col_stride] >> j % 32 & 1;
  }
};

struct TreeFromMaskParams {
  MaskView mask;
  IndexView cu_rows;     // [B + 1]
  StatusView status;     // [B]?
  int64_t num_rows;      // T
  int64_t num_requests;  // B

  IndexOut parents;  // [T]
};

struct BuildTreeParams {
  IndexView anchors;  // [B]        < 0: padded
  const void* ids;    // [B, D, K]  < 0: absent
  int64_t id_strides[3];
  bool ids_are_int64;
  const float* scores;       // [B, D, K], or [B, D, K, K] from each candidate of the slot before
  int64_t score_strides[4];  // of request, slot, predecessor (0 for marginals), candidate
  IndexView budgets;         // [B]?  rows of the tree, anchor included; absent: max_nodes
  IndexView num_drafts;      // [B]?  slots; absent: D
  StatusView status;         // [B]?
  int64_t num_requests;      // B
  int64_t num_slots;         // D
  int64_t num_candidates;    // K
  int64_t max_nodes;

  IndexOut tokens;          // [B * max_nodes]  packed by cu_rows; -1 after them
  IndexOut parents;         // [B * max_nodes]
  ArrayOut<1> path_scores;  // fp32 [B * max_nodes]
  IndexOut cu_rows;         // [B + 1]

  constexpr int64_t id(int64_t b, int64_t slot, int64_t k) const {
    const int64_t i = b * id_strides[0] + slot * id_strides[1] + k * id_strides[2];
    return ids_are_int64 ? static_cast<const int64_t*>(ids)[i]
                         : static_cast<const int32_t*>(ids)[i];
  }
};

// Rows of one request that come before the first bad parent; the anchor always stays.
constexpr int64_t num_good_rows(const IndexView& parents, const RowRange& rows, int64_t limit,
                                int32_t& bits) {
  if (rows.count > limit) bits |= kBoundTooSmall;
  const int64_t count = rows.count < limit ? rows.count : limit;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t parent = parents[rows.first + i];
    if (i == 0 ? parent == -1 : parent >= 0 && parent < i) continue;
    bits |= kBadTree;
    return i > 0 ? i : 1;
  }
  return count;
}

}  // namespace dflash
