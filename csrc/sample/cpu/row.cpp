#include "sample/cpu/row.h"

#include <vector>

namespace dflash {

// Of ids first .. last - 1, without the mask.
static void shape_ids(const LogitOptions& o, const RowSource& source, DType round_to, int64_t first,
                      int64_t last, float* values) {
  const SpanKernels& kernels = span_kernels();
  kernels.shape(values, last - first, round_to, o.logit_scale, o.softcap);
  for (int64_t j = source.adj_first; j < source.adj_last; ++j) {
    const int64_t id = o.adj_ids[j];
    if (first <= id && id < last) values[id - first] += *o.adj_values.at<float>(j);
  }
  kernels.clean(values, last - first);
}

void shape_span(const LogitOptions& o, const RowSource& source, const IdRange& ids, DType round_to,
                int64_t first_id, float* values) {
  const int64_t first = std::max(ids.first, first_id), last = std::min(ids.last, first_id + kSpan);
  shape_ids(o, source, round_to, first, last, values + (first - first_id));
  std::fill(values, values + (first - first_id), kMinusInf);
  std::fill(values + (last - first_id), values + kSpan, kMinusInf);
  if (source.mask_row < 0) return;
  uint32_t words[kSpan / 32];
  for (int i = 0; i < kSpan / 32; ++i) words[i] = mask_word(o, source.mask_row, first_id / 32 + i);
  span_kernels().mask(words, values);
}

void LogitReader::load(int64_t first, int64_t count, float* values) const {
  const int64_t offset = source.row * logits.strides[0] + (first - ids.first);
  const int64_t bytes = float_bytes(logits.dtype);
  span_kernels().load(static_cast<const char*>(logits.data) + offset * bytes, logits.dtype, count,
                      values);
}

void LogitReader::read(int64_t span, float* values) const {
  const int64_t first_id = span * kSpan;
  const int64_t first = std::max(ids.first, first_id), last = std::min(ids.last, first_id + kSpan);
  load(first, last - first, values + (first - first_id));
  shape_span(options, source, ids, DType::kF32, first_id, values);
}

float LogitReader::read_one(int64_t id) const {
  if (!is_allowed(options, source.mask_row, id)) return kMinusInf;
  float value;
  load(id, 1, &value);
  shape_ids(options, source, DType::kF32, id, id + 1, &value);
  return value;
}

int64_t lowest_allowed(const LogitOptions& o, const RowSource& source, const IdRange& ids) {
  if (ids.first >= ids.last) return -1;
  if (source.mask_row >= 0) {
    for (int64_t id = ids.first; id < ids.last; ++id) {
      if (is_allowed(o, source.mask_row, id)) return id;
    }
  }
  return ids.first;
}

void scan_greedy(const float* values, int64_t first_id, Best& best) {
  const float max = span_kernels().max(values);
  if (max == kMinusInf || (best.id >= 0 && max < best.score)) return;
  const int64_t i = std::find(values, values + kSpan, max) - values;
  best.offer(max, max, first_id + i);
}

void scan_sampled(float inv_temperature, const NoiseKey& noise, const float* values,
                  int64_t first_id, Best& best) {
  uint16_t where[kSpan];
  uint32_t words[kSpan];
  const float reached = best.id < 0 ? kMinusInf : best.score;
  const int count =
      span_kernels().may_reach(values, inv_temperature, noise, first_id, reached, where, words);
  for (int i = 0; i < count; ++i) {
    const float z = values[where[i]];
    if (best.id >= 0 && std::fma(z, inv_temperature, gumbel_bound(words[i])) < best.score) continue;
    const int64_t id = first_id + where[i];
    best.offer(std::fma(z, inv_temperature, gumbel_at(noise, id, words[i])), z, id);
  }
}

void scan_top(const float* values, int64_t first_id, TopKeys& top) {
  uint16_t where[kSpan];
  const int count = span_kernels().at_least(values, top.threshold(), where);
  for (int i = 0; i < count; ++i) {
    top.offer(candidate_key(values[where[i]], first_id + where[i]));
  }
}

void scan_span(const RowLaw& law, const float* values, int64_t first_id, RowScan& scan) {
  if (law.is_greedy) {
    scan_greedy(values, first_id, scan.best);
  } else if (law.is_filtered()) {
    scan_top(values, first_id, scan.top);
  } else {
    scan_sampled(law.inv_temperature, law.noise, values, first_id, scan.best);
  }
}

static void offer_key(const RowLaw& law, uint64_t key, Best& best) {
  const float z = key_value(key);
  const int64_t id = key_id(key);
  const uint32_t word = noise_words(law.noise, static_cast<uint32_t>(id >> 2), false).pick(id);
  const bool may_win =
      best.id < 0 || std::fma(z, law.inv_temperature, gumbel_bound(word)) >= best.score;
  if (may_win) best.offer(std::fma(z, law.inv_temperature, gumbel_at(law.noise, id, word)), z, id);
}

Best draw_among(const RowLaw& law, const uint64_t* keys, int64_t count) {
  Best best;
  for (int64_t i = 0; i < count; ++i) offer_key(law, keys[i], best);
  return best;
}

Choice choose(const RowLaw& law, RowScan& scan, float tempered_lse) {
  if (!law.is_filtered()) return {scan.best, true};
  const int64_t count = scan.top.sort();
  if (count == 0) return {{}, true};
  const uint64_t* keys = scan.top.keys();
  const int64_t num_kept =
      kept_of(law.filter, keys, count, count < kTopCount, law.inv_temperature, tempered_lse);
  if (num_kept < 0) return {{}, false};
  return {draw_among(law, keys, num_kept), true};
}

Token token_of(const LogitOptions& o, const RowSource& source, const IdRange& ids, const Best& best,
               float lse) {
  if (best.id >= 0) return {best.id, best.value - lse, 0};
  return {lowest_allowed(o, source, ids), kMinusInf, kNoFiniteLogit};
}

// Calls f(key) for a row's keys in order, until it says no. Most kept sets are small; the others
// are worth longer passes.
template <class F>
static void for_each_in_order(const IdRange& ids, const SpanReader& reader, const F& f) {
  constexpr int64_t kFirstBatch = 2048, kBatch = 16384;
  std::vector<uint64_t> buffer(2 * kFirstBatch);
  for (uint64_t below = ~uint64_t{0};;) {
    const auto batch = static_cast<int64_t>(buffer.size()) / 2;
    TopKeys top(buffer.data(), batch, 2 * batch);
    for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
      float values[kSpan];
      uint16_t where[kSpan];
      reader.read(span, values);
      const int count = span_kernels().at_least(values, top.threshold(), where);
      for (int i = 0; i < count; ++i) {
        const uint64_t key = candidate_key(values[where[i]], span * kSpan + where[i]);
        if (key < below) top.offer(key);
      }
    }
    const int64_t count = top.sort();
    for (int64_t i = 0; i < count; ++i) {
      if (!f(buffer[i])) return;
    }
    if (count < batch) return;
    below = buffer[count - 1];
    buffer.resize(2 * kBatch);
  }
}

static float row_max(const IdRange& ids, const SpanReader& reader) {
  float max = kMinusInf;
  for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
    float values[kSpan];
    reader.read(span, values);
    max = std::max(max, span_kernels().max(values));
  }
  return max;
}

// Calls f(key) for the keys that the filter keeps, in order; returns the rule, with their sum.
template <class F>
static PrefixRule for_each_kept(const RowLaw& law, const IdRange& ids, float tempered_lse,
                                const SpanReader& reader, const F& f) {
  const Filter& filter = law.filter;
  const float max = row_max(ids, reader) * law.inv_temperature;
  OrderedSum sum;
  int64_t num_summed = 0;
  if (filter.needs_top_k_total()) {
    for_each_in_order(ids, reader, [&](uint64_t key) {
      sum.add(exp_f32(key_value(key) * law.inv_temperature - max));
      return ++num_summed < filter.top_k;
    });
  }
  const float total = filter.needs_lse() ? exp_f32(tempered_lse - max) : sum.value();
  PrefixRule rule(filter, max, total);
  for_each_in_order(ids, reader, [&](uint64_t key) {
    if (!rule.keep(key_value(key) * law.inv_temperature)) return false;
    f(key);
    return !rule.is_full();
  });
  return rule;
}

Best draw_in_passes(const RowLaw& law, const IdRange& ids, float tempered_lse,
                    const SpanReader& reader) {
  Best best;
  for_each_kept(law, ids, tempered_lse, reader, [&](uint64_t key) { offer_key(law, key, best); });
  return best;
}

Kept kept_set(const RowLaw& law, const IdRange& ids, TopKeys& top, float tempered_lse,
              const SpanReader& reader) {
  const int64_t count = top.sort();
  const uint64_t* keys = top.keys();
  const int64_t num_kept =
      kept_of(law.filter, keys, count, count < kTopCount, law.inv_temperature, tempered_lse);
  Kept kept{0, key_value(keys[0]) * law.inv_temperature, 0.0f};
  if (num_kept < 0) {
    const PrefixRule rule =
        for_each_kept(law, ids, tempered_lse, reader, [&](uint64_t key) { kept.least = key; });
    kept.sum = rule.sum();
    return kept;
  }
  OrderedSum sum;
  for (int64_t i = 0; i < num_kept; ++i) {
    sum.add(exp_f32(key_value(keys[i]) * law.inv_temperature - kept.max));
  }
  kept.least = keys[num_kept - 1];
  kept.sum = sum.value();
  return kept;
}

}  // namespace dflash
