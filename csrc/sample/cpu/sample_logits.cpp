// sample_logits: one token per row of logits in memory.
//
// One pass over a row shapes its logits, sums its law, and finds its token, or the 64 best
// candidates if there is a filter. Only if those do not hold the kept set is the row read again.
//
// Reference: python/dflash_ops/reference/sample.py
#include "sample/cpu/kernels.h"
#include "sample/cpu/row.h"

namespace dflash {
namespace {

Best draw(const RowLaw& law, const LogitReader& reader, float* lse) {
  const IdRange& ids = reader.ids;
  uint64_t buffer[kTopCapacity];
  RowScan scan{.best = {}, .top = TopKeys(buffer, kTopCount, kTopCapacity)};
  LseTree raw, tempered;
  for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
    float values[kSpan];
    reader.read(span, values);
    raw.add(span, span_kernels().lse(values, 1.0f));
    if (needs_tempered(law)) tempered.add(span, span_kernels().lse(values, law.inv_temperature));
    scan_span(law, values, span * kSpan, scan);
  }
  *lse = lse_of(raw.total());
  const float tempered_lse = needs_tempered(law) ? lse_of(tempered.total()) : *lse;
  const Choice choice = choose(law, scan, tempered_lse);
  return choice.is_known ? choice.best : draw_in_passes(law, ids, tempered_lse, reader);
}

}  // namespace

void sample_logits_cpu(const SampleLogitsParams& p, int64_t begin, int64_t end) {
  const IdRange ids = id_range(p.options);
  for (int64_t i = begin; i < end; ++i) {
    const RowSource source = row_source(p.options, i);
    const RowLaw law = row_law(p.sampling, i, p.options.num_rows, p.options.vocab_size);
    Token token;
    if (source.row >= 0 && !law.is_padded) {
      float lse;
      const Best best = draw(law, LogitReader(p.logits, p.options, source), &lse);
      token = token_of(p.options, source, ids, best, lse);
    }
    p.ids.set(i, token.id);
    *p.logprobs.at<float>(i) = token.logprob;
    p.status.add(i, token.status | source.status | law.status);
  }
}

}  // namespace dflash
