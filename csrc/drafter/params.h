// What every backend of the drafter ops receives: no torch, no CUDA.
#pragma once

#include "common/paged.h"
#include "common/views.h"

namespace dflash {

struct BlockConvParams {
  ArrayView<2> x;         // [T, H]
  ArrayView<3> delta;     // [T, taps, G]  any strides
  ArrayView<2> base;      // [taps, H]
  ArrayView<2> residual;  // [T, H]?       added before the one rounding
  IndexView cu_rows;      // [B + 1]?      rows of each block; absent: block_size rows each
  StatusView status;      // [B]?
  int64_t num_rows;       // T
  int64_t num_blocks;     // B
  int64_t block_size;
  int64_t num_channels;  // H
  int64_t num_groups;    // G
  int64_t num_taps;

  ArrayOut<2> out;  // [T, H]
};

struct SelectPathParams {
  ArrayView<3> values;   // fp32 [B, D, K]  the head's values of the candidates
  const void* cand_ids;  // [B, D, K]       < 0: absent
  int64_t id_strides[3];
  bool ids_are_int64;
  ArrayView<3> hidden;       // [B, D, r]  projected hidden state of each slot
  IndexView anchors;         // [B]
  ArrayView<2> predecessor;  // [V, r]     one row per token
  ArrayView<2> successor;    // [V, r]
  RequestRows requests;
  IndexView ctx_lens;        // [R]?      the anchor's sequence index
  IndexView num_drafts;      // [B]?      absent: D
  const float* temperature;  // [R]?   absent: greedy
  int64_t temperature_stride;
  IndexView seeds;         // [R]?
  StatusView status;       // [B]?
  int64_t num_requests;    // B
  int64_t num_slots;       // D
  int64_t num_candidates;  // K
  int64_t rank;            // r
  int64_t vocab_size;      // V
  bool is_coupled;         // draw with the target's noise

  IndexOut tokens;  // [B, D]
  ArrayOut<3> q;    // fp32 [B, D, K]

  constexpr int64_t id(int64_t b, int64_t slot, int64_t k) const {
    const int64_t i = b * id_strides[0] + slot * id_strides[1] + k * id_strides[2];
    return ids_are_int64 ? static_cast<const int64_t*>(cand_ids)[i]
                         : static_cast<const int32_t*>(cand_ids)[i];
  }
};

}  // namespace dflash
