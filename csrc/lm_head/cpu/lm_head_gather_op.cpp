// lm_head_gather on torch's threads: the logits of the given ids from their own blocks of the head,
// then one pass over the head that sums each row's law and counts what is better than them.
#include <torch/csrc/stable/library.h>

#include "lm_head/cpu_pass.h"
#include "lm_head/lm_head_gather.h"

namespace dflash {
namespace {

// The keys of the given ids, and how many ids are better.
struct Ranked {
  int64_t num_ids;
  std::vector<uint64_t> keys;  // [slot, num_ids]; 0: no finite logit here
  std::vector<int64_t> ranks;
};

struct GatherWorker {
  const Head& head;
  const std::vector<RowLaw>& laws;
  SpanSums &raw, &tempered;
  Ranked& all;
  std::vector<int64_t> own;

  void take(int64_t slot, int64_t first_id, const float* values) {
    const RowLaw& law = laws[head.row(slot)];
    raw.set(slot, first_id, 1.0f, values);
    if (has_own_temperature(law)) tempered.set(slot, first_id, law.inv_temperature, values);
    for (int64_t i = slot * all.num_ids; i < (slot + 1) * all.num_ids; ++i) {
      if (all.keys[i] == 0) continue;
      const int64_t num_ties = std::clamp<int64_t>(key_id(all.keys[i]) - first_id, 0, kSpan);
      own[i] +=
          span_kernels().count_better(values, key_value(all.keys[i]), static_cast<int>(num_ties));
    }
  }
  void finish() {
    for (size_t i = 0; i < own.size(); ++i) all.ranks[i] += own[i];
  }
};

// The key of each given id that has a finite logit here; status bits of the others.
void find_keys(const LmHeadGatherParams& p, const Head& head, Ranked& ranked) {
  torch::stable::parallel_for(0, head.num_slots(), 1, [&](int64_t begin, int64_t end) {
    float values[kSpan], sums[GemmWeight::kBlock];
    for (int64_t slot = begin; slot < end; ++slot) {
      for (int64_t k = 0; k < ranked.num_ids; ++k) {
        const int64_t row = head.row(slot), id = p.ids(row, k);
        if (id == -1) continue;
        if (id < 0 || id >= p.head.options.vocab_size) p.head.status.add(row, kBadDraftId);
        if (id < head.ids().first || id >= head.ids().last) continue;
        head.logits(id / kSpan, slot, 1, values, sums);
        const float value = values[id % kSpan];
        if (value > kMinusInf) ranked.keys[slot * ranked.num_ids + k] = candidate_key(value, id);
      }
    }
  });
}

void write(const LmHeadGatherParams& p, int64_t row, int64_t k, float logprob, float tempered,
           int64_t rank) {
  p.logprobs.at<float>(row)[k * p.logprobs.strides[1]] = logprob;
  p.tempered.at<float>(row)[k * p.tempered.strides[1]] = tempered;
  p.ranks.set(row, k, rank);
}

void run_cpu(const LmHeadGatherParams& p, const Tensor&) {
  const LogitOptions& o = p.head.options;
  const int64_t num_ids = p.ids.num_cols;
  const std::vector<RowSource> sources = row_sources(o);
  std::vector<RowLaw> laws;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < o.num_rows; ++i) {
    laws.push_back(temperature_law(p.sampling, i, o.num_rows));
    p.head.status.add(i, sources[i].status | laws[i].status);
    if (sources[i].row >= 0 && !laws[i].is_padded) {
      rows.push_back(i);
      continue;
    }
    for (int64_t k = 0; k < num_ids; ++k) write(p, i, k, kMinusInf, kMinusInf, -1);
    *p.lse.at<float>(i) = kMinusInf;
  }
  const Head head(p.head, sources, std::move(rows));
  const auto size = static_cast<size_t>(head.num_slots() * num_ids);
  Ranked ranked{num_ids, std::vector<uint64_t>(size), std::vector<int64_t>(size)};
  find_keys(p, head, ranked);
  SpanSums raw(head.ids(), head.num_slots()), tempered(head.ids(), head.num_slots());
  head.for_each_span(
      [&] { return GatherWorker{head, laws, raw, tempered, ranked, std::vector<int64_t>(size)}; });
  for (int64_t slot = 0; slot < head.num_slots(); ++slot) {
    const int64_t row = head.row(slot);
    const RowLaw& law = laws[row];
    const float lse = raw.lse(slot);
    const float tempered_lse = has_own_temperature(law) ? tempered.lse(slot) : lse;
    *p.lse.at<float>(row) = lse;
    for (int64_t k = 0; k < num_ids; ++k) {
      const uint64_t key = ranked.keys[slot * num_ids + k];
      const int64_t rank = ranked.ranks[slot * num_ids + k];
      if (key == 0) {
        write(p, row, k, kMinusInf, kMinusInf, -1);
        continue;
      }
      const float z = key_value(key);
      const float greedy = rank == 0 ? 0.0f : kMinusInf;
      write(p, row, k, z - lse, law.is_greedy ? greedy : z * law.inv_temperature - tempered_lse,
            rank);
    }
    if (lse == kMinusInf) p.head.status.add(row, kNoFiniteLogit);
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("lm_head_gather", TORCH_BOX(&lm_head_gather<run_cpu>));
  m.impl("lm_head_gather.out", TORCH_BOX(&lm_head_gather_out<run_cpu>));
}

}  // namespace dflash
