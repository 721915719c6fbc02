// What the sampling and lm_head ops are told about logits and laws: no torch, no CUDA.
#pragma once

#include "common/noise.h"
#include "common/paged.h"
#include "common/views.h"
#include "sample/filter.h"

namespace dflash {

// From a product to a logit, in this order: scale, softcap, added terms, mask.
struct LogitOptions {
  IndexView verify_rows;  // [Tv]?   row of the input; -1: padded; absent: the same numbers
  int64_t num_rows;       // Tv
  int64_t num_source_rows;
  float logit_scale;
  float softcap;            // 0: none
  int64_t vocab_start;      // the id of column 0
  int64_t num_columns;      // columns
  int64_t vocab_size;       // ids from here on never win
  IndexTable token_mask;    // [num_masks, ceil(vocab_size / 32)]?  int32; bit 1: allowed
  IndexView mask_rows;      // [Tv]?   row of token_mask, -1: none; absent: the same numbers
  IndexView adj_cu;         // [Tv + 1]?
  IndexView adj_ids;        // [nnz]?
  ArrayView<1> adj_values;  // [nnz]?  fp32, added to the logits adj_ids
  int64_t num_adj;          // nnz
};

struct SamplingOptions {
  IndexView positions;  // [Tv]      sequence index of the row's own token
  IndexView cu_verify;  // [B + 1]   rows per request
  int64_t num_requests;
  RequestRows requests;
  ArrayView<1> temperature;  // [R]?  fp32; absent: greedy
  IndexView top_k;           // [R]?
  ArrayView<1> top_p;        // [R]?  fp32
  ArrayView<1> min_p;        // [R]?  fp32
  IndexView seeds;           // [R]?  int64
  bool is_joint;             // order of the filters
};

inline constexpr float kGreedyBelow = 1e-5f;  // temperatures

// Not 0 at infinity: a masked logit times it stays -inf.
static constexpr float inverse_temperature(float temperature) {
  const float inverse = 1.0f / temperature;
  return inverse > 0x1p-126f ? inverse : 0x1p-126f;
}

// One row of input, as the options name it.
struct RowSource {
  int64_t row;       // of the input; -1: a padded row
  int64_t mask_row;  // -1: everything is allowed
  int64_t adj_first;
  int64_t adj_last;
  int32_t status;
};

static constexpr RowSource row_source(const LogitOptions& o, int64_t i) {
  RowSource source{o.verify_rows ? o.verify_rows[i] : i, -1, 0, 0, 0};
  const auto drop = [&] {
    source.row = -1;
    source.status = kOutOfRange;
  };
  if (source.row == -1) return source;
  if (source.row < 0 || source.row >= o.num_source_rows) drop();
  if (o.token_mask) {
    source.mask_row = o.mask_rows ? o.mask_rows[i] : i;
    if (source.mask_row < -1 || source.mask_row >= o.token_mask.num_rows) drop();
  }
  if (o.adj_cu) {
    source.adj_first = o.adj_cu[i];
    source.adj_last = o.adj_cu[i + 1];
    if (source.adj_first < 0 || source.adj_last < source.adj_first || source.adj_last > o.num_adj) {
      drop();
    }
  }
  return source;
}

static constexpr int64_t request_of_row(const SamplingOptions& o, int64_t i, int64_t num_rows) {
  return request_of_row(o.cu_verify, o.num_requests, i, num_rows);
}

// How a row's token is chosen.
struct RowLaw {
  bool is_padded;
  bool is_greedy;
  float inv_temperature;
  Filter filter;
  NoiseKey noise;
  int32_t status;

  constexpr bool is_filtered() const { return !is_greedy && filter.is_on(); }
};

static constexpr RowLaw row_law(const SamplingOptions& o, int64_t i, int64_t num_rows,
                                int64_t vocab_size) {
  RowLaw law{.is_padded = true,
             .is_greedy = true,
             .inv_temperature = 1.0f,
             .filter = {},
             .noise = {},
             .status = 0};
  const int64_t request = request_of_row(o, i, num_rows);
  if (request < 0) return law;
  const int64_t row = o.requests[request];
  if (row < 0) {
    law.status = o.requests.is_bad(request) ? kOutOfRange : 0;
    return law;
  }
  law.is_padded = false;
  const float temperature = o.temperature ? *o.temperature.at<float>(row) : 0.0f;
  if (!(temperature >= kGreedyBelow)) return law;  // NaN too
  law.is_greedy = false;
  law.inv_temperature = inverse_temperature(temperature);
  const int64_t top_k = o.top_k ? o.top_k[row] : 0;
  const float top_p = o.top_p ? *o.top_p.at<float>(row) : 1.0f;
  const float min_p = o.min_p ? *o.min_p.at<float>(row) : 0.0f;
  law.filter = {top_k < vocab_size ? top_k : 0, top_p, min_p, o.is_joint};
  const int64_t token_idx = o.positions[i] + 1;
  if (token_idx < 0 || token_idx >> 32 != 0) {
    law.is_padded = true;
    law.status = kOutOfRange;
  }
  law.noise = target_noise(o.seeds[row], token_idx);
  return law;
}

// The log-sum-exp at the row's own temperature is another sum, and the filter asks for it.
static constexpr bool needs_tempered(const RowLaw& law) {
  return law.is_filtered() && law.filter.needs_lse() && law.inv_temperature != 1.0f;
}

struct SampleLogitsParams {
  ArrayView<2> logits;  // [num_source_rows, num_columns]
  LogitOptions options;
  SamplingOptions sampling;
  StatusView status;     // [Tv]?
  IndexOut ids;          // [Tv]
  ArrayOut<1> logprobs;  // [Tv] fp32
};

struct SampleCandidatesParams {
  ArrayView<2> values;  // [Tv, K]   fp32, descending
  IndexTable cand_ids;  // [Tv, K]   -1: absent
  ArrayView<1> lse;     // [Tv]      fp32, of the whole row at temperature 1
  SamplingOptions sampling;
  int64_t num_rows;        // Tv
  int64_t num_candidates;  // K
  int64_t vocab_size;
  StatusView status;     // [Tv]?
  IndexOut ids;          // [Tv]
  ArrayOut<1> logprobs;  // [Tv] fp32
  bool* covered;         // [Tv]
  int64_t covered_stride;
};

}  // namespace dflash
