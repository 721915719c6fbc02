#include "verify/cpu/target_row.h"

namespace dflash {

float TargetRow::logit(int64_t id) const {
  if (id < reader.ids.first || id >= reader.ids.last) return kMinusInf;
  float values[kSpan];
  reader.read(id / kSpan, values);
  return values[id % kSpan];
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

Best TargetRow::draw_rest(const DraftLaw& q, const NoiseKey& noise) const {
  Best best;
  const IdRange& ids = reader.ids;
  for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
    float values[kSpan];
    reader.read(span, values);
    for (int64_t j = 0; j < q.count; ++j) {
      if (q.ids[j] / kSpan == span) values[q.ids[j] % kSpan] = kMinusInf;
    }
    for (int i = 0; i < kSpan && target.least != 0; ++i) {
      if (!target.keeps(values[i], span * kSpan + i)) values[i] = kMinusInf;
    }
    scan_sampled(target.inv_temperature, noise, values, span * kSpan, best);
  }
  return best;
}

}  // namespace dflash
