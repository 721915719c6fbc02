// One pass over the LM head: every row's logits, span after span, handed to a worker while they are
// in the nearest caches. Nothing of the vocabulary's size is kept.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "gemm/cpu/kernels.h"
#include "lm_head/params.h"
#include "sample/cpu/row.h"

namespace dflash {

// The rows of a call that have logits. Slots number them.
class Head {
 public:
  // rows: which of the call's rows; padded ones must not be among them.
  Head(const HeadParams& params, const std::vector<RowSource>& sources, std::vector<int64_t> rows);

  const HeadParams& params() const { return p_; }
  const IdRange& ids() const { return ids_; }
  int64_t num_slots() const { return static_cast<int64_t>(rows_.size()); }
  int64_t row(int64_t slot) const { return rows_[slot]; }
  const RowSource& source(int64_t slot) const { return sources_[rows_[slot]]; }

  // values[slot - first_slot][kSpan] = the logits of a span, for `count` <= kGemmMaxRows slots.
  // sums is scratch: [kGemmMaxRows, 32].
  void logits(int64_t span, int64_t first_slot, int64_t count, float* values, float* sums) const;

  // Calls worker.take(slot, first_id, values) for every slot and span, from several threads with a
  // worker each, then worker.finish() of each worker, one at a time.
  template <class MakeWorker>
  void for_each_span(const MakeWorker& make_worker) const;

 private:
  HeadParams p_;
  const std::vector<RowSource>& sources_;
  std::vector<int64_t> rows_;
  IdRange ids_;
  std::unique_ptr<char[]> memory_;
  PackedRows packed_;
};

inline Head::Head(const HeadParams& params, const std::vector<RowSource>& sources,
                  std::vector<int64_t> rows)
    : p_(params), sources_(sources), rows_(std::move(rows)), ids_(id_range(params.options)) {
  const GemmKernels& kernels = gemm_kernels();
  const RowForm form = p_.weight.row_form();
  packed_.row_bytes = kernels.row_bytes(p_.h.dtype, form);
  constexpr int64_t kLine = 64;
  memory_ = std::make_unique_for_overwrite<char[]>(num_slots() * packed_.row_bytes + kLine);
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  char* first = memory_.get() + (kLine - address % kLine) % kLine;
  packed_.data = first;
  torch::stable::parallel_for(0, num_slots(), 16, [&](int64_t begin, int64_t end) {
    const int64_t bytes = float_bytes(p_.h.dtype);
    for (int64_t slot = begin; slot < end; ++slot) {
      const char* from =
          static_cast<const char*>(p_.h.data) + source(slot).row * p_.h.strides[0] * bytes;
      kernels.pack_row(from, p_.h.dtype, form, p_.norm_weight, p_.eps,
                       first + slot * packed_.row_bytes);
    }
  });
}

inline void Head::logits(int64_t span, int64_t first_slot, int64_t count, float* values,
                         float* sums) const {
  constexpr int64_t kBlock = GemmWeight::kBlock;
  const int64_t first_id = span * kSpan;
  const int64_t first_col = std::max(ids_.first, first_id) - ids_.first;
  const int64_t last_col = std::min(ids_.last, first_id + kSpan) - ids_.first;
  const int64_t to_column = ids_.first - first_id;  // column -> place in the span
  for (int64_t block = first_col / kBlock; block * kBlock < last_col; ++block) {
    const int64_t begin = std::max(first_col, block * kBlock);
    const int64_t end = std::min(last_col, (block + 1) * kBlock);
    gemm_kernels().block_sums(p_.weight, block, packed_, first_slot, count, sums);
    for (int64_t r = 0; r < count; ++r) {
      std::copy(sums + r * kBlock + (begin - block * kBlock),
                sums + r * kBlock + (end - block * kBlock),
                values + r * kSpan + (begin + to_column));
    }
  }
  if (p_.bias) {
    float bias[kSpan];
    const int64_t bytes = float_bytes(p_.bias.dtype);
    span_kernels().load(static_cast<const char*>(p_.bias.data) + first_col * bytes, p_.bias.dtype,
                        last_col - first_col, bias);
    for (int64_t r = 0; r < count; ++r) {
      float* to = values + r * kSpan + (first_col + to_column);
      for (int64_t i = 0; i < last_col - first_col; ++i) to[i] += bias[i];
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    shape_span(p_.options, source(first_slot + r), ids_, p_.round_to, first_id, values + r * kSpan);
  }
}

template <class MakeWorker>
void Head::for_each_span(const MakeWorker& make_worker) const {
  if (num_slots() == 0) return;
  const int64_t num_tasks =
      std::min<int64_t>(torch::stable::get_num_threads(), last_span(ids_) - first_span(ids_));
  std::atomic<int64_t> next{first_span(ids_)};
  std::mutex mutex;
  torch::stable::parallel_for(0, num_tasks, 1, [&](int64_t, int64_t) {
    auto worker = make_worker();
    const auto values = std::make_unique_for_overwrite<float[]>(kGemmMaxRows * kSpan);
    alignas(64) float sums[kGemmMaxRows * GemmWeight::kBlock];
    // A task that comes late finds less: nobody waits for a thread whose core is busy.
    for (int64_t span; (span = next.fetch_add(1)) < last_span(ids_);) {
      for (int64_t slot = 0; slot < num_slots(); slot += kGemmMaxRows) {
        const int64_t count = std::min(kGemmMaxRows, num_slots() - slot);
        logits(span, slot, count, values.get(), sums);
        for (int64_t r = 0; r < count; ++r) {
          worker.take(slot + r, span * kSpan, values.get() + r * kSpan);
        }
      }
    }
    const std::lock_guard lock(mutex);
    worker.finish();
  });
}

// Log-sum-exps of all slots from nodes of their spans, which come in any order.
class SpanSums {
 public:
  SpanSums(const IdRange& ids, int64_t num_slots)
      : first_(first_span(ids)),
        count_(last_span(ids) - first_),
        nodes_(static_cast<size_t>(count_ * num_slots)) {}

  void set(int64_t slot, int64_t first_id, float inv_temperature, const float* values) {
    nodes_[slot * count_ + first_id / kSpan - first_] = span_kernels().lse(values, inv_temperature);
  }
  float lse(int64_t slot) const {
    LseTree tree;
    for (int64_t i = 0; i < count_; ++i) tree.add(first_ + i, nodes_[slot * count_ + i]);
    return lse_of(tree.total());
  }

 private:
  int64_t first_;
  int64_t count_;
  std::vector<LseNode> nodes_;
};

inline std::vector<RowSource> row_sources(const LogitOptions& o) {
  std::vector<RowSource> sources;
  for (int64_t i = 0; i < o.num_rows; ++i) sources.push_back(row_source(o, i));
  return sources;
}

}  // namespace dflash
