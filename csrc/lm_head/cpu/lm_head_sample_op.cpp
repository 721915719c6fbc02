// lm_head_sample on torch's threads: a pass over the head that sums every row's law and finds its
// token, or the 64 best candidates; then a pass that writes the logits of those rows whose filter
// keeps more.
#include <torch/csrc/stable/library.h>

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

// Writes logits down.
struct StoreWorker {
  float* workspace;
  int64_t stride;
  int64_t first_id_of_all;

  void take(int64_t slot, int64_t first_id, const float* values) {
    std::copy_n(values, kSpan, workspace + slot * stride + (first_id - first_id_of_all));
  }
  void finish() {}
};

struct MemoryReader final : SpanReader {
  const float* row;
  int64_t first_span;

  MemoryReader(const float* logits, int64_t span) : row(logits), first_span(span) {}
  void read(int64_t span, float* values) const override {
    std::copy_n(row + (span - first_span) * kSpan, kSpan, values);
  }
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

  void draw_from_memory(std::vector<int64_t> rows, const std::vector<float>& lse,
                        const std::vector<float>& tempered_lse, int32_t bits) const {
    const Head head(p.head, sources, std::move(rows));
    const IdRange& ids = head.ids();
    const int64_t stride = fallback_stride(p.head.options.num_columns);
    head.for_each_span([&] { return StoreWorker{p.workspace, stride, ids.first_span() * kSpan}; });
    torch::stable::parallel_for(0, head.num_slots(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        const int64_t row = head.row(slot);
        const MemoryReader reader(p.workspace + slot * stride, ids.first_span());
        write(row, draw_in_passes(laws[row], ids, tempered_lse[row], reader), lse[row], bits);
      }
    });
  }
};

void run_cpu(const LmHeadSampleParams& p, int32_t) {
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
  // As many as the workspace holds in one more pass over the head; a pass for each further row.
  for (size_t first = 0; first < unknown.size();) {
    const size_t count = first == 0 ? static_cast<size_t>(p.max_fallback_rows) : 1;
    const size_t last = std::min(first + count, unknown.size());
    run.draw_from_memory({unknown.begin() + first, unknown.begin() + last}, lse, tempered_lse,
                         first == 0 ? 0 : kBoundTooSmall);
    first = last;
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("lm_head_sample", TORCH_BOX(&lm_head_sample<run_cpu>));
  m.impl("lm_head_sample.out", TORCH_BOX(&lm_head_sample_out<run_cpu>));
}

}  // namespace dflash
