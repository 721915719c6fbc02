// lm_head_sample on torch's threads: a pass over the head that sums every row's law and finds its
// token, or the 64 best candidates; then a pass that writes the logits of those rows whose filter
// keeps more.
#include <torch/csrc/stable/library.h>

#include "lm_head/cpu/fallback.h"
#include "lm_head/cpu/scans.h"
#include "lm_head/cpu_pass.h"
#include "lm_head/lm_head_sample.h"

namespace dflash {
namespace {

struct SampleWorker {
  const std::vector<RowLaw>& laws;  // of each slot
  SpanSums &raw, &tempered;
  Scans& all;
  Scans own;

  void take(int64_t slot, int64_t first_id, const float* values) {
    const RowLaw& law = laws[slot];
    raw.set(slot, first_id, 1.0f, values);
    if (needs_tempered(law)) tempered.set(slot, first_id, law.inv_temperature, values);
    scan_span(law, values, first_id, own[slot]);
  }
  void finish() { all.merge(own); }
};

struct Run {
  const LmHeadSampleParams& p;
  std::vector<RowSource> sources;
  std::vector<RowLaw> laws;

  void write(int64_t row, const Best& best, float lse, int32_t bits) const {
    const LogitOptions& o = p.head.options;
    const Token token = token_of(o, sources[row], id_range(o), best, lse);
    p.ids.set(row, token.id);
    *p.logprobs.at<float>(row) = token.logprob;
    p.head.status.add(row, token.status | bits);
  }
};

void run_cpu(const LmHeadSampleParams& p, const Tensor&) {
  Run run{p, row_sources(p.head.options), {}};
  const int64_t num_rows = p.head.options.num_rows;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    run.laws.push_back(row_law(p.sampling, i, num_rows, p.head.options.vocab_size));
    p.head.status.add(i, run.sources[i].status | run.laws[i].status);
    if (run.sources[i].row >= 0 && !run.laws[i].is_padded) {
      rows.push_back(i);
      continue;
    }
    p.ids.set(i, -1);
    *p.logprobs.at<float>(i) = 0.0f;
  }

  const Head head(p.head, run.sources, std::move(rows));
  const bool any_tempered = std::ranges::any_of(run.laws, needs_tempered);
  SpanSums raw(head.ids(), head.num_slots());
  SpanSums tempered(head.ids(), any_tempered ? head.num_slots() : 0);
  std::vector<RowLaw> laws;
  for (int64_t slot = 0; slot < head.num_slots(); ++slot) laws.push_back(run.laws[head.row(slot)]);
  Scans scans(laws);
  head.for_each_span([&] { return SampleWorker{laws, raw, tempered, scans, Scans(laws)}; });

  std::vector<float> lse(num_rows), tempered_lse(num_rows);
  std::vector<int64_t> unknown;
  for (int64_t slot = 0; slot < head.num_slots(); ++slot) {
    const int64_t row = head.row(slot);
    const RowLaw& law = run.laws[row];
    lse[row] = raw.lse(slot);
    tempered_lse[row] = needs_tempered(law) ? tempered.lse(slot) : lse[row];
    const Choice choice = choose(law, scans[slot], tempered_lse[row]);
    if (choice.is_known) {
      run.write(row, choice.best, lse[row], 0);
    } else {
      unknown.push_back(row);
    }
  }
  read_again(p.head, run.sources, unknown, p.max_fallback_rows, p.workspace,
             [&](int64_t row, const IdRange& ids, const SpanReader& reader, int32_t bits) {
               const RowLaw& law = run.laws[row];
               run.write(row, draw_in_passes(law, ids, tempered_lse[row], reader), lse[row], bits);
             });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("lm_head_sample", TORCH_BOX(&lm_head_sample<run_cpu>));
  m.impl("lm_head_sample.out", TORCH_BOX(&lm_head_sample_out<run_cpu>));
}

}  // namespace dflash
