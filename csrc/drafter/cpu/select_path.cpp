// select_path: DFlash 2's selector walks the slots of a block, each choice conditional on the last.
//
// A slot's scores are K dot products with one shared factor, the predecessor's codebook row times
// the slot's hidden state. Dot products: 32 interleaved chains from zero (element i in chain
// i mod 32), added pairwise: what the lanes of a warp do.
//
// Reference: python/dflash_ops/reference/drafter.py

#include <cfloat>
#include <cmath>
#include <vector>

#include "common/dispatch.h"
#include "common/expf.h"
#include "common/noise.h"
#include "drafter/cpu/kernels.h"

namespace dflash {
namespace {

template <class T>
float dot(const float* x, const T* y, int64_t n) {
  constexpr int kChains = 32;
  float sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) sums[c] += x[i + c] * to_float(y[i + c]);
  }
  for (int c = 0; i + c < n; ++c) sums[c] += x[i + c] * to_float(y[i + c]);
  for (int width = kChains / 2; width > 0; width /= 2) {
    for (int c = 0; c < width; ++c) sums[c] += sums[c + width];
  }
  return sums[0];
}

struct Candidate {
  int64_t id;   // -1: not to be chosen
  float score;  // NaN counts as -inf, +inf as the largest number
};

struct Walk {
  const SelectPathParams& p;
  std::vector<float> factor = std::vector<float>(p.rank);
  std::vector<Candidate> candidates = std::vector<Candidate>(p.num_candidates);

  // Scores slot `slot` of request b, whose predecessor is token `from`.
  template <class Book, class Hidden>
  void score(int64_t b, int64_t slot, int64_t from, int32_t& bits) {
    const bool has_edge = from >= 0 && from < p.vocab_size;
    if (!has_edge) bits |= kBadDraftId;
    if (has_edge) {
      const Book* predecessor = p.predecessor.at<Book>(from);
      const Hidden* hidden = p.hidden.at<Hidden>(b) + slot * p.hidden.strides[1];
      for (int64_t i = 0; i < p.rank; ++i) {
        factor[i] = to_float(predecessor[i]) * to_float(hidden[i]);
      }
    }
    const float* values = p.values.at<float>(b) + slot * p.values.strides[1];
    for (int64_t k = 0; k < p.num_candidates; ++k) {
      const int64_t id = p.id(b, slot, k);
      candidates[k] = {-1, -INFINITY};
      if (id >= p.vocab_size) bits |= kBadDraftId;
      if (id < 0 || id >= p.vocab_size) continue;
      float score = values[k * p.values.strides[2]];
      if (has_edge) score += dot(factor.data(), p.successor.at<Book>(id), p.rank);
      candidates[k] = {id, std::isnan(score) ? -INFINITY : score > FLT_MAX ? FLT_MAX : score};
    }
  }

  // The candidate with the highest rank_of(k); ties go to the lower id. -1 if there is none.
  template <class F>
  int64_t best(F&& rank_of) const {
    int64_t chosen = -1;
    float highest = -INFINITY;
    for (int64_t k = 0; k < p.num_candidates; ++k) {
      if (candidates[k].id < 0) continue;
      const float rank = rank_of(k);
      const bool is_better = chosen < 0 || rank > highest ||
                             (rank == highest && candidates[k].id < candidates[chosen].id);
      if (!is_better) continue;
      chosen = k;
      highest = rank;
    }
    return chosen;
  }

  void write_q(int64_t b, int64_t slot, int64_t one_hot, float inverse_temperature) const {
    float* q = p.q.at<float>(b) + slot * p.q.strides[1];
    const int64_t stride = p.q.strides[2];
    if (one_hot >= 0 || inverse_temperature == 0.0f) {
      for (int64_t k = 0; k < p.num_candidates; ++k) q[k * stride] = k == one_hot ? 1.0f : 0.0f;
      return;
    }
    float largest = -INFINITY, sum = 0.0f;
    for (const Candidate& c : candidates) largest = c.score > largest ? c.score : largest;
    for (int64_t k = 0; k < p.num_candidates; ++k) {
      const float weight = exp_f32((candidates[k].score - largest) * inverse_temperature);
      q[k * stride] = weight;
      sum += weight;
    }
    for (int64_t k = 0; k < p.num_candidates; ++k) q[k * stride] /= sum;
  }

  // Returns how many slots it filled.
  template <class Book, class Hidden>
  int64_t run(int64_t b, int64_t state_row, int64_t num_slots, int32_t& bits) {
    const float temperature =
        p.temperature != nullptr ? p.temperature[state_row * p.temperature_stride] : 0.0f;
    const bool is_greedy = !(temperature >= 1e-5f);
    const float inverse = is_greedy ? 0.0f : 1.0f / temperature;
    int64_t token = p.anchors[b];
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      score<Book, Hidden>(b, slot, token, bits);
      const auto raw = [&](int64_t k) { return candidates[k].score; };
      int64_t chosen = best(raw);
      if (chosen < 0) return slot;
      const bool is_finite = candidates[chosen].score > -INFINITY;
      if (!is_finite) bits |= kNoFiniteLogit;
      const bool is_drawn = is_finite && !is_greedy;
      if (is_drawn) {
        const int64_t anchor_idx = p.ctx_lens[state_row], token_idx = anchor_idx + 1 + slot;
        const int64_t seed = p.seeds[state_row];
        const NoiseKey key = p.is_coupled
                                 ? target_noise(seed, token_idx)
                                 : cycle_noise(kDraftStream, seed, token_idx, anchor_idx, slot);
        chosen = best([&](int64_t k) {
          const auto& [id, score] = candidates[k];
          return score > -INFINITY ? std::fma(score, inverse, gumbel_at(key, id)) : -INFINITY;
        });
      }
      token = candidates[chosen].id;
      p.tokens.set(b, slot, token);
      write_q(b, slot, is_drawn ? -1 : chosen, inverse);
    }
    return num_slots;
  }
};

}  // namespace

void select_path_cpu(const SelectPathParams& p, int64_t begin, int64_t end) {
  Walk walk{p};
  for (int64_t b = begin; b < end; ++b) {
    int32_t bits = p.requests.is_bad(b) ? kOutOfRange : 0;
    const int64_t state_row = p.requests[b];
    int64_t num_slots = p.num_drafts ? p.num_drafts[b] : p.num_slots;
    if (state_row < 0 || num_slots < 0) num_slots = 0;
    if (num_slots > p.num_slots) bits |= kBoundTooSmall;
    num_slots = std::min(num_slots, p.num_slots);

    (void)with_dtype<float, BF16, F16>(p.predecessor.dtype, [&]<class B>(std::type_identity<B>) {
      (void)with_dtype<float, BF16, F16>(p.hidden.dtype, [&]<class H>(std::type_identity<H>) {
        if (num_slots > 0) num_slots = walk.run<B, H>(b, state_row, num_slots, bits);
      });
    });
    for (int64_t slot = num_slots; slot < p.num_slots; ++slot) {
      p.tokens.set(b, slot, -1);
      walk.write_q(b, slot, -1, 0.0f);
    }
    p.status.add(b, bits);
  }
}

}  // namespace dflash
