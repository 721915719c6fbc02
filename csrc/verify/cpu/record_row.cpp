#include "verify/cpu/record_row.h"

#include <algorithm>
#include <limits>

#include "sample/cpu/candidates.h"

namespace dflash {

static void list_keys(RecordRow& row, const uint64_t* keys, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    row.ids[j] = key_id(keys[j]);
    row.values[j] = key_value(keys[j]);
  }
  row.count = count;
  row.is_whole = true;
}

static void list_ids(RecordRow& row, const RejectionParams& p, int64_t row_idx) {
  const HeadRecord& r = p.record;
  for (int64_t j = 0; j < r.ids.num_cols; ++j) {
    const int64_t id = r.ids(row_idx, j);
    if (id < 0 || id >= p.options.vocab_size || row.has(id)) continue;
    const float value = r.values.at<float>(row_idx)[j * r.values.strides[1]];
    row.ids[row.count] = id;
    row.values[row.count++] = value == value ? value : kMinusInf;
  }
}

static Best read_rest(const RejectionParams& p, int64_t row_idx) {
  const HeadRecord& r = p.record;
  const int64_t id = r.rest_ids[row_idx];
  const float key = *r.rest_keys.at<float>(row_idx);
  if (id < 0 || id >= p.options.vocab_size || !(key > kMinusInf)) return {};
  return {key, *r.rest_values.at<float>(row_idx), id};
}

RecordRow RecordRow::read(const RejectionParams& p, int64_t row_idx, const RowLaw& law) {
  const HeadRecord& r = p.record;
  const float tempered_lse = *r.tempered_lse.at<float>(row_idx);
  RecordRow row;
  row.lse = *r.lse.at<float>(row_idx);
  row.target = {law.inv_temperature, 0, tempered_lse, 1.0f};
  Candidates top;
  read_candidates(r.top_values, r.top_ids, row_idx, p.options.vocab_size, top);
  if (top.lowest_id >= 0) {
    row.only_id = top.lowest_id;
  } else if (law.is_greedy) {
    list_keys(row, top.keys, std::min<int64_t>(top.count, 1));
    if (top.count > 0) row.target = {1.0f, top.keys[0], key_value(top.keys[0]), 1.0f};
  } else if (law.is_filtered()) {
    const bool says_covered = r.covered[row_idx * r.covered_stride] && top.count > 0;
    const int64_t num_kept = says_covered
                                 ? kept_of(law.filter, top.keys, top.count, top.is_complete,
                                           law.inv_temperature, tempered_lse)
                                 : -1;
    row.is_covered = num_kept > 0;
    if (row.is_covered) {
      list_keys(row, top.keys, num_kept);
      const float max = key_value(top.keys[0]) * law.inv_temperature;
      OrderedSum sum;
      for (int64_t j = 0; j < num_kept; ++j) {
        sum.add(exp_f32(row.values[j] * law.inv_temperature - max));
      }
      row.target = {law.inv_temperature, top.keys[num_kept - 1], max, sum.value()};
    } else {
      row.rest = read_rest(p, row_idx);
    }
  } else {
    list_ids(row, p, row_idx);
    row.rest = read_rest(p, row_idx);
    row.is_whole = row.rest.id < 0;
  }
  return row;
}

bool RecordRow::has(int64_t id) const { return std::find(ids, ids + count, id) != ids + count; }

float RecordRow::logit(int64_t id) const {
  const int64_t at = std::find(ids, ids + count, id) - ids;
  return at < count ? values[at] : kMinusInf;
}

bool RecordRow::has_finite() const {
  return std::any_of(values, values + count, [](float z) { return z > kMinusInf; });
}

int32_t RecordRow::missing(const DraftLaw& q, int64_t draft) const {
  if (!is_covered) return kBoundTooSmall;
  if (is_whole || only_id >= 0) return 0;
  const auto is_listed = [&](int64_t id) { return has(id); };
  return is_listed(draft) && std::all_of(q.ids, q.ids + q.count, is_listed) ? 0 : kBadQ;
}

Best RecordRow::draw_rest(const DraftLaw& q, const NoiseKey& noise) const {
  Best best = rest;
  for (int64_t j = 0; j < count; ++j) {
    if (!target.keeps(values[j], ids[j]) || q.has(ids[j])) continue;
    const float score = std::fma(values[j], target.inv_temperature, gumbel_at(noise, ids[j]));
    best.offer(score, values[j], ids[j]);
  }
  return best;
}

}  // namespace dflash
