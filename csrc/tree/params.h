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

}  // namespace dflash
