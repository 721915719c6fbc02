// Which candidates a filter keeps: always the first few in the one order (value descending, id
// ascending), as top-k, top-p and min-p each keep the first few.
//
// t = value / T; terms are exp(t - max t), and a candidate is kept iff
//   it is the first, or
//   its number is below top_k, its term is at least min_p, and the sum of the terms before it is
//   below top_p * total; sums are taken in order, in blocks of 32 terms that are added up.
// order k_then_p: total is the sum over the first top_k, or exp(lse - max) without top_k.
// order joint:    total is always exp(lse - max).
#pragma once

#include <cstdint>

#include "common/expf.h"
#include "sample/keys.h"

namespace dflash {

struct Filter {
  int64_t top_k;  // <= 0: off
  float top_p;    // < 1: on
  float min_p;    // > 0: on
  bool is_joint;

  constexpr bool has_top_k() const { return top_k > 0; }
  constexpr bool has_top_p() const { return top_p < 1.0f; }
  constexpr bool is_on() const { return has_top_k() || has_top_p() || min_p > 0.0f; }
  // top_p is a share of the whole law, so the tempered log-sum-exp is needed.
  constexpr bool needs_lse() const { return has_top_p() && (is_joint || !has_top_k()); }
  // top_p is a share of the first top_k candidates.
  constexpr bool needs_top_k_total() const { return has_top_p() && !needs_lse(); }
};

// A sum of terms in order, in blocks of 32.
struct OrderedSum {
  float done = 0.0f;
  float block = 0.0f;
  int in_block = 0;

  constexpr void add(float term) {
    block += term;
    if (++in_block == 32) {
      done += block;
      block = 0.0f;
      in_block = 0;
    }
  }
  constexpr float value() const { return done + block; }
};

// Asked about candidate after candidate, in order, until one is not kept.
class PrefixRule {
 public:
  // total: see above; read only with top_p.
  constexpr PrefixRule(const Filter& filter, float max, float total)
      : filter_(filter), max_(max), limit_(filter.top_p * total) {}

  constexpr bool keep(float t) { return keep_term(exp_f32(t - max_)); }
  constexpr bool keep_term(float term) {
    if (count_ > 0 && (is_full() || term < filter_.min_p)) return false;
    sum_.add(term);
    ++count_;
    return true;
  }
  // No further candidate is kept, whatever its value.
  constexpr bool is_full() const {
    return count_ > 0 && ((filter_.has_top_k() && count_ >= filter_.top_k) ||
                          (filter_.has_top_p() && sum_.value() >= limit_));
  }

  constexpr float sum() const { return sum_.value(); }  // of the kept terms

 private:
  Filter filter_;
  float max_;
  float limit_;
  OrderedSum sum_;
  int64_t count_ = 0;
};

// How many of the best `count` candidates are kept, or -1 if they do not tell. term_of(i): the i-th
// term; total: exp(lse - max), read only if the filter needs it; is_complete: there are no others.
template <class F>
static constexpr int64_t kept_of_terms(const Filter& filter, F term_of, int64_t count,
                                       bool is_complete, float total) {
  if (filter.needs_top_k_total()) {
    if (count < filter.top_k && !is_complete) return -1;
    OrderedSum sum;
    for (int64_t i = 0; i < count && i < filter.top_k; ++i) sum.add(term_of(i));
    total = sum.value();
  }
  PrefixRule rule(filter, 0.0f, total);
  for (int64_t i = 0; i < count; ++i) {
    if (!rule.keep_term(term_of(i))) return i;
  }
  return is_complete || rule.is_full() ? count : -1;
}

// The same of keys. tempered_lse: read only if the filter needs it.
static constexpr int64_t kept_of(const Filter& filter, const uint64_t* keys, int64_t count,
                                 bool is_complete, float inv_temperature, float tempered_lse) {
  const float max = key_value(keys[0]) * inv_temperature;
  const auto term_of = [&](int64_t i) {
    return exp_f32(key_value(keys[i]) * inv_temperature - max);
  };
  const float total = filter.needs_lse() ? exp_f32(tempered_lse - max) : 0.0f;
  return kept_of_terms(filter, term_of, count, is_complete, total);
}

}  // namespace dflash
