// lm_head_topk on torch's threads: one pass over the head.
#include <torch/csrc/stable/library.h>

#include "lm_head/cpu_pass.h"
#include "lm_head/lm_head_topk.h"

namespace dflash {
namespace {

class Tops {
 public:
  Tops(int64_t num_slots, int64_t k) : buffers_(static_cast<size_t>(num_slots * kTopCapacity)) {
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      rows_.emplace_back(buffers_.data() + slot * kTopCapacity, k, kTopCapacity);
    }
  }
  TopKeys& operator[](int64_t slot) { return rows_[slot]; }

 private:
  std::vector<uint64_t> buffers_;
  std::vector<TopKeys> rows_;
};

struct TopWorker {
  SpanSums& sums;
  Tops& all;
  int64_t num_slots;
  Tops own;

  void take(int64_t slot, int64_t first_id, const float* values) {
    sums.set(slot, first_id, 1.0f, values);
    scan_top(values, first_id, own[slot]);
  }
  void finish() {
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      const int64_t count = own[slot].sort();
      for (int64_t i = 0; i < count; ++i) all[slot].offer(own[slot].keys()[i]);
    }
  }
};

void write(const LmHeadTopkParams& p, int64_t row, const uint64_t* keys, int64_t count,
           int64_t lowest, float lse) {
  for (int64_t j = 0; j < p.k; ++j) {
    const bool is_there = j < count;
    p.values.at<float>(row)[j * p.values.strides[1]] = is_there ? key_value(keys[j]) : kMinusInf;
    p.ids.set(row, j, is_there ? key_id(keys[j]) : j == 0 ? lowest : -1);
  }
  *p.lse.at<float>(row) = lse;
}

void run_cpu(const LmHeadTopkParams& p, const Tensor&) {
  const LogitOptions& o = p.head.options;
  const std::vector<RowSource> sources = row_sources(o);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < o.num_rows; ++i) {
    p.head.status.add(i, sources[i].status);
    if (sources[i].row >= 0) {
      rows.push_back(i);
    } else {
      write(p, i, nullptr, 0, -1, kMinusInf);
    }
  }
  const Head head(p.head, sources, std::move(rows));
  SpanSums sums(head.ids(), head.num_slots());
  Tops tops(head.num_slots(), p.k);
  head.for_each_span(
      [&] { return TopWorker{sums, tops, head.num_slots(), Tops(head.num_slots(), p.k)}; });
  for (int64_t slot = 0; slot < head.num_slots(); ++slot) {
    const int64_t count = tops[slot].sort();
    const bool is_empty = count == 0;
    const int64_t lowest = is_empty ? lowest_allowed(o, head.source(slot), head.ids()) : -1;
    write(p, head.row(slot), tops[slot].keys(), count, lowest, sums.lse(slot));
    if (is_empty) p.head.status.add(head.row(slot), kNoFiniteLogit);
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("lm_head_topk", TORCH_BOX(&lm_head_topk<run_cpu>));
  m.impl("lm_head_topk.out", TORCH_BOX(&lm_head_topk_out<run_cpu>));
}

}  // namespace dflash
