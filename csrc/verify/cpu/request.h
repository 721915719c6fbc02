// One request of rejection verification: its rows, its noise, and what is written of it.
#pragma once

#include "verify/cpu/record_row.h"
#include "verify/cpu/residual.h"
#include "verify/cpu/target_row.h"

namespace dflash {

// Whether two requests may have a row in common: never where cu_verify does not fall. Asked once
// for many requests, so that each need not look at all before it.
inline bool may_share_rows(const SamplingOptions& sampling) {
  for (int64_t b = 0; b < sampling.num_requests; ++b) {
    if (sampling.cu_verify[b + 1] < sampling.cu_verify[b]) return true;
  }
  return false;
}

class RejectionRequest {
 protected:
  RejectionRequest(const RejectionParams& p, int64_t b, bool may_share_rows) : p_(p), b_(b) {
    const RowRange rows = row_range(p.sampling.cu_verify, b, p.options.num_rows);
    first_ = rows.first;
    num_rows_ = rows.count;
    if (!rows.in_range) bits_ |= kOutOfRange;
    state_row_ = p.sampling.requests[b];
    if (p.sampling.requests.is_bad(b)) bits_ |= kOutOfRange;
    if (state_row_ < 0) num_rows_ = 0;
    for (int64_t other = 0; may_share_rows && other < b && num_rows_ > 0; ++other) {
      if (!overlap(rows, row_range(p.sampling.cu_verify, other, p.options.num_rows))) continue;
      bits_ |= kOutOfRange;  // only one request may have a row
      num_rows_ = 0;
    }
    if (num_rows_ > 0 && !can_enter(0)) num_rows_ = 0;
    is_sampled_ = p.q && (!p.draft_kind || p.draft_kind[b] != 0);
    anchor_idx_ = num_rows_ > 0 ? p.sampling.positions[first_] : 0;
  }

  int64_t token(int64_t i) const { return p_.tokens[first_ + i]; }
  RowSource source(int64_t i) const { return row_source(p_.options, first_ + i); }
  RowLaw law(int64_t i) const {
    return row_law(p_.sampling, first_ + i, p_.options.num_rows, p_.options.vocab_size);
  }
  bool can_enter(int64_t i) {
    const RowSource from = source(i);
    const RowLaw to = law(i);
    bits_ |= from.status | to.status;
    return from.row >= 0 && !to.is_padded;
  }
  bool is_draft_usable(int64_t i) {
    const bool is_token = token(i) >= 0 && token(i) < p_.options.vocab_size;
    if (!is_token) bits_ |= kBadDraftId;
    return is_token && can_enter(i);
  }
  bool is_law_usable(int64_t i, DraftLaw& q) {
    const bool is_good = read_draft_law(p_, first_ + i, is_sampled_, scattered_, q);
    if (!is_good) bits_ |= kBadQ;
    return is_good;
  }
  template <class Row>
  Row load_target(int64_t i) {
    Row row = Row::read(p_, first_ + i, law(i));
    if (row.only_id >= 0) bits_ |= kNoFiniteLogit;
    return row;
  }

  NoiseKey noise(Stream stream, int64_t parent) const {
    const int64_t seed = p_.sampling.seeds ? p_.sampling.seeds[state_row_] : 0;
    const int64_t token_idx = p_.sampling.positions[first_ + parent] + 1;
    return cycle_noise(stream, seed, token_idx, anchor_idx_, parent);
  }
  // The coin of draft i.
  float toss(int64_t i, int64_t parent, float probability) {
    const NoiseKey key = noise(kCoinStream, parent);
    const float coin = coin_at(key, i);
    if (p_.is_probe) {
      *p_.accept_probs.at<float>(first_ + i) = probability;
      *p_.coins.at<float>(first_ + i) = coin;
      write_counter(i, 0, i, key);
    }
    return coin;
  }
  template <class Row>
  Best draw_last(int64_t i, const Row& row, const DraftLaw& q, float scale) const {
    return draw_residual(row, q, scale, noise(kResidualStream, i));
  }
  template <class Row>
  static float logprob(float z, const Row& row) {
    return z > kMinusInf ? z - row.lse : kMinusInf;
  }

  template <class Row>
  void probe_row(int64_t i, const Row& row, const DraftLaw& q, float scale) {
    write_weights(row, q, scale, p_.weights.at<float>(first_ + i), p_.weights.strides[1],
                  p_.options.vocab_size);
    write_counter(i, 1, -1, noise(kResidualStream, i));
  }
  void write_counter(int64_t i, int64_t which, int64_t c0, const NoiseKey& key) {
    int64_t* to = p_.counters + ((first_ + i) * 2 + which) * 4;
    to[0] = c0, to[1] = key.token_idx, to[2] = key.purpose, to[3] = key.anchor_idx;
  }
  void write_token(int64_t col, int64_t id, float logprob) {
    p_.emitted.set(b_, col, id);
    p_.logprobs.at<float>(b_)[col * p_.logprobs.strides[1]] = logprob;
  }
  void write_path_row(int64_t col, int64_t i) {
    const int64_t row = first_ + i;
    p_.accepted_rows.set(b_, col, p_.options.verify_rows ? p_.options.verify_rows[row] : row);
  }
  // The first `count` columns are written.
  void write_counts(int64_t count) {
    for (int64_t col = count; col <= p_.max_path; ++col) {
      write_token(col, -1, 0.0f);
      p_.accepted_rows.set(b_, col, -1);
    }
    p_.num_accepted.set(b_, count > 0 ? count - 1 : 0);
    p_.num_emitted.set(b_, count);
    p_.status.add(b_, bits_);
  }

  const RejectionParams& p_;
  int64_t b_;
  int64_t first_;
  int64_t num_rows_;
  int64_t state_row_;
  bool is_sampled_;
  int32_t bits_ = 0;
  int64_t anchor_idx_ = 0;
  std::vector<float> scattered_;  // [vocab_size]  a dense q of a smaller vocabulary
};

// What a probe says of rows that nothing reaches.
inline void clear_probe(const RejectionParams& p) {
  for (int64_t i = 0; i < p.options.num_rows; ++i) {
    *p.accept_probs.at<float>(i) = 0.0f;
    *p.coins.at<float>(i) = 0.0f;
    std::fill_n(p.counters + i * 8, 8, -1);
    for (int64_t id = 0; id < p.options.vocab_size; ++id) {
      p.weights.at<float>(i)[id * p.weights.strides[1]] = 0.0f;
    }
  }
}

}  // namespace dflash
