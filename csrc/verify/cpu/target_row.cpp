#include "verify/cpu/target_row.h"

#include "verify/cpu/ids_sum.h"

namespace dflash {

float TargetRow::logit(int64_t id) const {
  if (id < reader.ids.first || id >= reader.ids.last) return kMinusInf;
  return reader.read_one(id);
}

TargetRow TargetRow::read(const RejectionParams& p, int64_t row_idx, const RowLaw& row_law) {
  const LogitOptions& o = p.options;
  const RowSource source = row_source(o, row_idx);
  TargetRow row{row_law, LogitReader(p.logits, o, source), 0.0f, {}, -1};
  const RowLaw& law = row.law;
  const IdRange& ids = row.reader.ids;
  uint64_t buffer[kTopCapacity];
  TopKeys top(buffer, kTopCount, kTopCapacity);
  Best best;
  LseTree raw, tempered;
  const bool has_own_temperature = !law.is_greedy && law.inv_temperature != 1.0f;
  for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
    float values[kSpan];
    row.reader.read(span, values);
    raw.add(span, span_kernels().lse(values, 1.0f));
    if (has_own_temperature) tempered.add(span, span_kernels().lse(values, law.inv_temperature));
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

SpanLaw TargetRow::span_law(int64_t first_id) const {
  SpanLaw kept{target.inv_temperature, target.shift, target.sum, kMinusInf, 0};
  if (target.least == 0) return kept;
  kept.least = key_value(target.least);
  const int64_t num_ties = key_id(target.least) + 1 - first_id;
  kept.num_ties = static_cast<int>(std::clamp<int64_t>(num_ties, 0, kSpan));
  return kept;
}

template <class F>
void TargetRow::for_each_residual(const DraftLaw& q, float scale, const F& f) const {
  for_each_span([&](const SpanLaw& kept, int64_t first_id, const float* values) {
    float weights[kSpan];
    law_kernels().probs(kept, values, weights);
    // Ids from the last one on have no q, and no probability either.
    law_kernels().residual(scale, q.dense + first_id * q.dense_stride, q.dense_stride,
                           q.dense_total, std::min<int64_t>(kSpan, reader.ids.last - first_id),
                           weights);
    f(first_id, weights);
  });
}

float TargetRow::entropy() const {
  if (only_id >= 0) return 0.0f;
  VocabSum sum;
  const float log_norm = target.log_norm();
  for_each_span([&](const SpanLaw& kept, int64_t first_id, const float* values) {
    float terms[kSpan];
    law_kernels().surprises(kept, log_norm, values, terms);
    sum.add(first_id, terms);
  });
  return sum.value();
}

float TargetRow::dense_residual_mass(const DraftLaw& q, float scale) const {
  VocabSum mass;
  for_each_residual(q, scale,
                    [&](int64_t first_id, const float* weights) { mass.add(first_id, weights); });
  return mass.value();
}

// log w stands for a logit, so that most of the noise need not be computed.
Best TargetRow::draw_dense_residual(const DraftLaw& q, float scale, const NoiseKey& noise) const {
  Best best;
  for_each_residual(q, scale, [&](int64_t first_id, float* weights) {
    law_kernels().logs(weights);
    scan_sampled(1.0f, noise, weights, first_id, best);
  });
  if (best.id >= 0) best.value = logit(best.id);
  return best;
}

Best TargetRow::draw_rest(const DraftLaw& q, const NoiseKey& noise) const {
  Best best;
  const IdRange& ids = reader.ids;
  for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
    float values[kSpan];
    reader.read(span, values);
    for (int64_t j = 0; j < q.count; ++j) {
      if (q.ids[j] / kSpan == span) values[q.ids[j] % kSpan] = kMinusInf;
    }
    if (target.least != 0) law_kernels().keep(span_law(span * kSpan), values);
    scan_sampled(target.inv_temperature, noise, values, span * kSpan, best);
  }
  return best;
}

}  // namespace dflash
