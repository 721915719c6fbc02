// The target's law p, and what is left of it, w = max(scale * p - q, 0): its sum, its draw. A Row
// is a TargetRow or a RecordRow.
#pragma once

#include "verify/cpu/draft_law.h"
#include "verify/rejection.h"

namespace dflash {

template <class Row>
float prob_of(const Row& row, int64_t id) {
  if (row.only_id >= 0) return id == row.only_id ? 1.0f : 0.0f;
  return row.target.prob(row.logit(id), id);
}

template <class Row>
float residual_mass(const Row& row, const DraftLaw& q, float scale) {
  if (row.only_id >= 0) return residual_weight(1.0f, q.prob(row.only_id), scale);
  if constexpr (Row::kMeetsDenseQ) {
    if (q.dense != nullptr) return row.dense_residual_mass(q, scale);
  }
  OrderedSum listed, mass;
  for (int64_t j = 0; j < q.count; ++j) {
    const float p = prob_of(row, q.ids[j]);
    listed.add(p);
    mass.add(residual_weight(p, q.probs[j], scale));
  }
  const float rest = 1.0f - listed.value();
  return mass.value() + (rest > 0.0f ? scale * rest : 0.0f);
}

// The draw from w, or from p if w is nothing.
template <class Row>
Best draw_residual(const Row& row, const DraftLaw& q, float scale, const NoiseKey& noise) {
  if (row.only_id >= 0) return {0.0f, kMinusInf, row.only_id};
  Best best;
  if constexpr (Row::kMeetsDenseQ) {
    if (q.dense != nullptr) {
      best = row.draw_dense_residual(q, scale, noise);
      return best.id >= 0 ? best : row.draw_rest(DraftLaw{}, noise);
    }
  }
  if (!is_nothing(scale)) best = row.draw_rest(q, noise);
  if (best.id >= 0) best.score += log_f32(scale) - row.target.log_norm();
  for (int64_t j = 0; j < q.count; ++j) {
    const float z = row.logit(q.ids[j]);
    const float weight = residual_weight(row.target.prob(z, q.ids[j]), q.probs[j], scale);
    if (!is_nothing(weight)) best.offer(log_f32(weight) + gumbel_at(noise, q.ids[j]), z, q.ids[j]);
  }
  return best.id >= 0 ? best : row.draw_rest(DraftLaw{}, noise);
}

// w of every id, or p if w is nothing.
template <class Row>
void write_weights(const Row& row, const DraftLaw& q, float scale, float* weights, int64_t stride,
                   int64_t count) {
  for (int64_t id = 0; id < count; ++id) weights[id * stride] = 0.0f;
  if (row.only_id >= 0) {
    weights[row.only_id * stride] = 1.0f;
    return;
  }
  bool is_empty = true;
  row.for_each_kept([&](int64_t id, float, float p) {
    const float weight = residual_weight(p, q.prob(id), scale);
    weights[id * stride] = weight;
    is_empty = is_empty && is_nothing(weight);
  });
  if (!is_empty) return;
  row.for_each_kept([&](int64_t id, float, float p) { weights[id * stride] = p; });
}

}  // namespace dflash
