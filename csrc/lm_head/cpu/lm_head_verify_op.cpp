// lm_head_verify on torch's threads: all that rejection verification with a sparse q needs of the
// target, in one pass over the head. The draw among the ids that are not listed is taken along, as
// nobody comes back for it.
#include <torch/csrc/stable/library.h>

#include "lm_head/cpu/fallback.h"
#include "lm_head/cpu/scans.h"
#include "lm_head/cpu_pass.h"
#include "lm_head/lm_head_verify.h"

namespace dflash {
namespace {

struct VerifyWorker {
  const LmHeadVerifyParams& p;
  const Head& head;
  const std::vector<RowLaw>& laws;  // of each slot
  SpanSums &raw, &tempered;
  Scans& all;
  Scans own;

  void take(int64_t slot, int64_t first_id, float* values) {
    const int64_t row = head.row(slot);
    const RowLaw& law = laws[slot];
    raw.set(slot, first_id, 1.0f, values);
    if (has_own_temperature(law)) tempered.set(slot, first_id, law.inv_temperature, values);
    const bool draws_rest = !law.is_greedy && !law.is_filtered();
    for (int64_t k = 0; k < p.ids.num_cols; ++k) {
      const int64_t i = p.ids(row, k) - first_id;
      if (0 <= i && i < kSpan) p.values.at<float>(row)[k * p.values.strides[1]] = values[i];
    }
    for (int64_t k = 0; k < p.ids.num_cols && draws_rest; ++k) {
      const int64_t i = p.ids(row, k) - first_id;
      if (0 <= i && i < kSpan) values[i] = kMinusInf;
    }
    scan_span(law, values, first_id, own[slot]);
  }
  void finish() { all.merge(own); }
};

void write_rest(const LmHeadVerifyParams& p, int64_t row, const Best& best) {
  p.rest_ids.set(row, best.id);
  *p.rest_values.at<float>(row) = best.value;
  *p.rest_keys.at<float>(row) = best.score;
}

// A row before the pass, and what a padded row keeps.
void clear(const LmHeadVerifyParams& p, int64_t row) {
  for (int64_t k = 0; k < p.ids.num_cols; ++k) {
    const int64_t id = p.ids(row, k);
    const bool is_outside = id < -1 || id >= p.head.options.vocab_size;
    if (is_outside) p.head.status.add(row, kBadDraftId);
    p.values.at<float>(row)[k * p.values.strides[1]] = kMinusInf;
  }
  for (int64_t j = 0; j < kTopCount; ++j) {
    p.top_values.at<float>(row)[j * p.top_values.strides[1]] = kMinusInf;
    p.top_ids.set(row, j, -1);
  }
  *p.lse.at<float>(row) = kMinusInf;
  *p.tempered_lse.at<float>(row) = kMinusInf;
  write_rest(p, row, {kMinusInf, kMinusInf, -1});
  p.covered[row * p.covered_stride] = false;
}

void write_top(const LmHeadVerifyParams& p, int64_t row, int64_t j, float value, int64_t id) {
  p.top_values.at<float>(row)[j * p.top_values.strides[1]] = value;
  p.top_ids.set(row, j, id);
}

// Returns whether the record holds the row's law, or all that one shard can tell of it.
bool write(const LmHeadVerifyParams& p, const Head& head, int64_t slot, const RowLaw& law,
           RowScan& scan, float lse, float tempered_lse) {
  const int64_t row = head.row(slot);
  bool& is_covered = p.covered[row * p.covered_stride];
  *p.lse.at<float>(row) = lse;
  *p.tempered_lse.at<float>(row) = tempered_lse;
  if (lse == kMinusInf) {
    write_top(p, row, 0, kMinusInf, lowest_allowed(p.head.options, head.source(slot), head.ids()));
    p.head.status.add(row, kNoFiniteLogit);
    is_covered = true;
  } else if (law.is_greedy) {
    write_top(p, row, 0, scan.best.value, scan.best.id);
    is_covered = true;
  } else if (law.is_filtered()) {
    const int64_t count = scan.top.sort();
    const uint64_t* keys = scan.top.keys();
    for (int64_t j = 0; j < count; ++j) write_top(p, row, j, key_value(keys[j]), key_id(keys[j]));
    if (is_shard(p.head.options)) return true;
    is_covered =
        kept_of(law.filter, keys, count, count < kTopCount, law.inv_temperature, tempered_lse) >= 0;
    return is_covered;
  } else if (scan.best.id >= 0) {
    write_rest(p, row, scan.best);
  }
  return true;
}

void run_cpu(const LmHeadVerifyParams& p, const Tensor&) {
  const LogitOptions& o = p.head.options;
  const std::vector<RowSource> sources = row_sources(o);
  std::vector<RowLaw> laws;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < o.num_rows; ++i) {
    const RowLaw law = residual_law(p.sampling, i, o.num_rows, o.vocab_size);
    clear(p, i);
    p.head.status.add(i, sources[i].status | law.status);
    if (sources[i].row < 0 || law.is_padded) continue;
    rows.push_back(i);
    laws.push_back(law);
  }
  const Head head(p.head, sources, std::move(rows));
  const bool any_tempered = std::ranges::any_of(laws, has_own_temperature);
  SpanSums raw(head.ids(), head.num_slots());
  SpanSums tempered(head.ids(), any_tempered ? head.num_slots() : 0);
  Scans scans(laws);
  head.for_each_span(
      [&] { return VerifyWorker{p, head, laws, raw, tempered, scans, Scans(laws)}; });
  struct Uncovered {
    const RowLaw* law;
    float tempered_lse;
  };
  std::vector<Uncovered> known(o.num_rows);
  std::vector<int64_t> uncovered;
  for (int64_t slot = 0; slot < head.num_slots(); ++slot) {
    const float lse = raw.lse(slot);
    const float tempered_lse = has_own_temperature(laws[slot]) ? tempered.lse(slot) : lse;
    if (write(p, head, slot, laws[slot], scans[slot], lse, tempered_lse)) continue;
    uncovered.push_back(head.row(slot));
    known[head.row(slot)] = {&laws[slot], tempered_lse};
  }
  read_again(p.head, sources, uncovered, p.max_fallback_rows, p.workspace,
             [&](int64_t row, const IdRange& ids, const SpanReader& reader, int32_t bits) {
               const auto [law, tempered_lse] = known[row];
               write_rest(p, row, draw_in_passes(*law, ids, tempered_lse, reader));
               p.head.status.add(row, bits);
             });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("lm_head_verify", TORCH_BOX(&lm_head_verify<run_cpu>));
  m.impl("lm_head_verify.out", TORCH_BOX(&lm_head_verify_out<run_cpu>));
}

}  // namespace dflash
