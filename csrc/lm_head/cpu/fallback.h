// A second pass over the head for the few rows whose filter keeps more than a pass collects: their
// logits are written to the workspace.
#pragma once

#include "lm_head/cpu_pass.h"
#include "lm_head/plan.h"

namespace dflash {

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

// Calls f(row, ids, reader, bits) for every row: as many as the workspace holds share one more pass
// over the head, each further one has a pass of its own and the bit kBoundTooSmall.
template <class F>
void read_again(const HeadParams& p, const std::vector<RowSource>& sources,
                const std::vector<int64_t>& rows, int64_t max_fallback_rows, float* workspace,
                const F& f) {
  const int64_t stride = fallback_stride(p.options.num_columns);
  for (size_t first = 0; first < rows.size();) {
    const size_t count = first == 0 ? static_cast<size_t>(max_fallback_rows) : 1;
    const size_t last = std::min(first + count, rows.size());
    const Head head(p, sources, {rows.begin() + first, rows.begin() + last});
    const int64_t origin = first_span(head.ids());
    head.for_each_span([&] { return StoreWorker{workspace, stride, origin * kSpan}; });
    torch::stable::parallel_for(0, head.num_slots(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        const MemoryReader reader(workspace + slot * stride, origin);
        f(head.row(slot), head.ids(), reader, first == 0 ? 0 : kBoundTooSmall);
      }
    });
    first = last;
  }
}

}  // namespace dflash
