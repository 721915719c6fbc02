// The arithmetic of rejection verification, one row at a time; the same for chains and trees, and
// on every backend.
//
//   p  the target's law after a row, with temperature and filter      q  the drafter's
//   w  = max(scale * p - q, 0), what is left of p after a rejection; scale is 1 under rule token
#pragma once

#include "common/expf.h"
#include "common/logf.h"
#include "sample/keys.h"
#include "sample/lse.h"

namespace dflash {

// The target's law of one row: exp(z / T - shift) / sum for the ids that the filter keeps.
struct TargetLaw {
  float inv_temperature;
  uint64_t least;  // key of the last candidate that is kept
  float shift;
  float sum;

  constexpr bool keeps(float z, int64_t id) const {
    return z > kMinusInf && candidate_key(z, id) >= least;
  }
  constexpr float prob(float z, int64_t id) const {
    return keeps(z, id) ? exp_f32(z * inv_temperature - shift) / sum : 0.0f;
  }
  // log p = z / T - this
  constexpr float log_norm() const { return shift + log_f32(sum); }
};

static constexpr float residual_weight(float p, float q, float scale) {
  const float weight = std::fma(scale, p, -q);
  return weight > 0.0f ? weight : 0.0f;
}

static constexpr bool is_nothing(float weight) { return weight < 0x1p-126f; }  // no denormal logs

// Rule token: a draft of probability q is accepted iff this holds for its coin.
static constexpr bool accepts(float coin, float p, float q) { return coin * q < p; }
static constexpr float accept_prob(float p, float q) {
  return p <= 0.0f ? 0.0f : q <= p ? 1.0f : p / q;
}

// Rule block (Sun et al. 2024, algorithm 2): the scale after a draft, from that before it; and the
// probability that a prefix of that scale is kept, when `mass` is the sum of w at its last row; 0
// where nothing is left of p, as then a longer prefix is kept.
static constexpr float next_scale(float scale, float p, float q) {
  return scale * p >= q ? (p > 0.0f ? 1.0f : 0.0f) : scale * p / q;
}
static constexpr float prefix_accept_prob(float scale, float mass) {
  return mass > 0.0f ? mass / (mass + (1.0f - scale)) : 0.0f;
}

// A node whose maximum is 0 is a plain sum, as exp(0) is 1: sums over the vocabulary are merged as
// the log-sum-exp is.
static constexpr LseNode sum_node(float sum) { return {0.0f, sum}; }

}  // namespace dflash
