// sample_candidates: the token of a row from its best candidates, if they tell it.
//
// Reference: python/dflash_ops/reference/sample.py
#include "sample/cpu/candidates.h"
#include "sample/cpu/kernels.h"
#include "sample/cpu/row.h"

namespace dflash {
namespace {

// How many candidates the row's token is drawn from; -1: they do not tell.
int64_t num_kept(const RowLaw& law, const Candidates& list, float lse) {
  if (law.is_greedy) return 1;
  if (!law.is_filtered()) return list.is_complete ? list.count : -1;
  if (needs_tempered(law)) return -1;  // lse is that of temperature 1
  return kept_of(law.filter, list.keys, list.count, list.is_complete, law.inv_temperature, lse);
}

}  // namespace

void sample_candidates_cpu(const SampleCandidatesParams& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const RowLaw law = row_law(p.sampling, i, p.num_rows, p.vocab_size);
    int32_t status = law.status;
    int64_t id = -1;
    float logprob = 0.0f;
    bool is_covered = false;
    if (!law.is_padded) {
      Candidates list;
      read_candidates(p.values, p.cand_ids, i, p.vocab_size, list);
      status |= list.status;
      const float lse = *p.lse.at<float>(i);
      const int64_t kept = list.count > 0 ? num_kept(law, list, lse) : -1;
      if (kept > 0) {
        const Best best = law.is_greedy ? Best{0.0f, key_value(list.keys[0]), key_id(list.keys[0])}
                                        : draw_among(law, list.keys, kept);
        id = best.id;
        logprob = best.value - lse;
        is_covered = true;
      } else if (list.lowest_id >= 0) {
        id = list.lowest_id;
        logprob = kMinusInf;
        status |= kNoFiniteLogit;
        is_covered = true;
      }
    }
    p.ids.set(i, id);
    *p.logprobs.at<float>(i) = logprob;
    p.covered[i * p.covered_stride] = is_covered;
    p.status.add(i, status);
  }
}

}  // namespace dflash
