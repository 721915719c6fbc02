#include "verify/cpu/chain_rows.h"

namespace dflash {

float TargetRow::logit(int64_t id) const {
  if (id < reader.ids.first || id >= reader.ids.last) return kMinusInf;
  float values[kSpan];
  reader.read(id / kSpan, values);
  return values[id % kSpan];
}

float TargetRow::prob(int64_t id) const {
  if (only_id >= 0) return id == only_id ? 1.0f : 0.0f;
  return target.prob(logit(id), id);
}

float TargetRow::logprob(int64_t id) const {
  const float z = logit(id);
  return z > kMinusInf ? z - lse : kMinusInf;
}

TargetRow target_row(const ArrayView<2>& logits, const LogitOptions& o, const RowSource& source,
                     const RowLaw& row_law) {
  TargetRow row{row_law, LogitReader(logits, o, source), 0.0f, {}, -1};
  const RowLaw& law = row.law;
  const IdRange& ids = row.reader.ids;
  uint64_t buffer[kTopCapacity];
  TopKeys top(buffer, kTopCount, kTopCapacity);
  Best best;
  LseTree raw, tempered;
  const bool has_own_temperature = !law.is_greedy && law.inv_temperature != 1.0f;
  for (int64_t span = ids.first_span(); span < ids.last_span(); ++span) {
    float values[kSpan];
    row.reader.read(span, values);
    add_lse(values, 1.0f, span * kSpan, raw);
    if (has_own_temperature) add_lse(values, law.inv_temperature, span * kSpan, tempered);
    if (law.is_greedy) {
      scan_greedy(values, span * kSpan, best);
    } else if (law.is_filtered()) {
      scan_top(values, span * kSpan, top);
    }
  }
  row.lse = lse_of(raw.total());
  if (row.lse == kMinusInf) {
    row.only_id = lowest_allowed(o, source, ids);
    return row;
  }
  const float tempered_lse = has_own_temperature ? lse_of(tempered.total()) : row.lse;
  if (law.is_greedy) {
    row.target = {1.0f, candidate_key(best.value, best.id), best.value, 1.0f};
  } else if (law.is_filtered()) {
    const Kept kept = kept_set(law, ids, top, tempered_lse, row.reader);
    row.target = {law.inv_temperature, kept.least, kept.max, kept.sum};
  } else {
    row.target = {law.inv_temperature, 0, tempered_lse, 1.0f};
  }
  return row;
}

float DraftLaw::prob(int64_t id) const {
  if (dense != nullptr) return dense[id * dense_stride] / dense_total;
  for (int64_t j = 0; j < count; ++j) {
    if (ids[j] == id) return probs[j];
  }
  return 0.0f;
}

bool DraftLaw::has(int64_t id) const { return std::find(ids, ids + count, id) != ids + count; }

static bool read_dense(const RejectionParams& p, int64_t row, DraftLaw& q) {
  q.dense = p.q.at<float>(row);
  q.dense_stride = p.q.strides[1];
  OrderedSum sum;
  for (int64_t id = 0; id < p.options.vocab_size; ++id) {
    const float value = q.dense[id * q.dense_stride];
    if (!(value >= 0.0f)) return false;
    sum.add(value);
  }
  q.dense_total = sum.value();
  return q.dense_total > 0.0f && q.dense_total <= std::numeric_limits<float>::max();
}

bool read_draft_law(const RejectionParams& p, int64_t row, bool is_sampled, DraftLaw& q) {
  if (!is_sampled) {  // one-hot at the draft, which is in the next row
    q.ids[0] = p.tokens[row + 1];
    q.probs[0] = 1.0f;
    q.count = 1;
    return true;
  }
  if (!p.q_ids) return read_dense(p, row, q);
  OrderedSum sum;
  for (int64_t j = 0; j < p.q_ids.num_cols; ++j) {
    const int64_t id = p.q_ids(row, j);
    if (id == -1) continue;
    const float value = p.q.at<float>(row)[j * p.q.strides[1]];
    if (!(value >= 0.0f) || id < 0 || id >= p.options.vocab_size) return false;
    sum.add(value);
    int64_t at = std::find(q.ids, q.ids + q.count, id) - q.ids;
    if (at == q.count) {
      q.ids[q.count] = id;
      q.probs[q.count++] = 0.0f;
    }
    q.probs[at] += value;
  }
  const float total = sum.value();
  if (!(total > 0.0f && total <= std::numeric_limits<float>::max())) return false;
  for (int64_t j = 0; j < q.count; ++j) q.probs[j] /= total;
  return true;
}

float residual_mass(const TargetRow& row, const DraftLaw& q, float scale) {
  if (row.only_id >= 0) return residual_weight(1.0f, q.prob(row.only_id), scale);
  OrderedSum mass;
  if (q.dense != nullptr) {
    for_each_kept(row, [&](int64_t id, float z) {
      mass.add(residual_weight(row.target.prob(z, id), q.prob(id), scale));
    });
    return mass.value();
  }
  OrderedSum listed;
  for (int64_t j = 0; j < q.count; ++j) {
    const float p = row.prob(q.ids[j]);
    listed.add(p);
    mass.add(residual_weight(p, q.probs[j], scale));
  }
  const float rest = 1.0f - listed.value();
  return mass.value() + (rest > 0.0f ? scale * rest : 0.0f);
}

static void offer_weight(const NoiseKey& noise, float weight, float z, int64_t id, Best& best) {
  if (weight < std::numeric_limits<float>::min()) return;  // no logarithm of denormals
  best.offer(log_f32(weight) + gumbel_at(noise, id), z, id);
}

// The draw among the target's ids that q does not list, as if q were 0 there.
static Best draw_rest(const TargetRow& row, const DraftLaw& q, float scale, const NoiseKey& noise) {
  Best best;
  const IdRange& ids = row.reader.ids;
  for (int64_t span = ids.first_span(); span < ids.last_span(); ++span) {
    float values[kSpan];
    row.reader.read(span, values);
    for (int64_t j = 0; j < q.count; ++j) {
      if (q.ids[j] / kSpan == span) values[q.ids[j] % kSpan] = kMinusInf;
    }
    for (int i = 0; i < kSpan && row.target.least != 0; ++i) {
      if (!row.target.keeps(values[i], span * kSpan + i)) values[i] = kMinusInf;
    }
    scan_sampled(row.target.inv_temperature, noise, values, span * kSpan, best);
  }
  if (best.id >= 0) best.score += log_f32(scale) - row.target.log_norm();
  return best;
}

Best draw_residual(const TargetRow& row, const DraftLaw& q, float scale, const NoiseKey& noise) {
  if (row.only_id >= 0) return {0.0f, kMinusInf, row.only_id};
  Best best;
  if (q.dense != nullptr) {
    for_each_kept(row, [&](int64_t id, float z) {
      offer_weight(noise, residual_weight(row.target.prob(z, id), q.prob(id), scale), z, id, best);
    });
  } else {
    if (scale >= std::numeric_limits<float>::min()) best = draw_rest(row, q, scale, noise);
    for (int64_t j = 0; j < q.count; ++j) {
      const float z = row.logit(q.ids[j]);
      const float weight = residual_weight(row.target.prob(z, q.ids[j]), q.probs[j], scale);
      offer_weight(noise, weight, z, q.ids[j], best);
    }
  }
  return best.id >= 0 ? best : draw_rest(row, DraftLaw{}, 1.0f, noise);
}

void write_weights(const TargetRow& row, const DraftLaw& q, float scale, float* weights,
                   int64_t stride, int64_t count) {
  for (int64_t id = 0; id < count; ++id) weights[id * stride] = 0.0f;
  if (row.only_id >= 0) {
    weights[row.only_id * stride] = 1.0f;
    return;
  }
  bool is_nothing = true;
  for_each_kept(row, [&](int64_t id, float z) {
    const float weight = residual_weight(row.target.prob(z, id), q.prob(id), scale);
    weights[id * stride] = weight;
    is_nothing = is_nothing && weight < std::numeric_limits<float>::min();
  });
  if (!is_nothing) return;
  for_each_kept(row, [&](int64_t id, float z) { weights[id * stride] = row.target.prob(z, id); });
}

void clear_probe(const RejectionParams& p) {
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
