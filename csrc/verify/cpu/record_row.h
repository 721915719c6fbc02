// The target's law after one row, from the record of lm_head_verify: some ids with their logits,
// and the best of the rest under the residual's noise.
#pragma once

#include "sample/params.h"
#include "verify/cpu/draft_law.h"
#include "verify/rejection.h"

namespace dflash {

struct RecordRow {
  static constexpr bool kMeetsDenseQ = false;  // a record comes with a sparse q

  // The listed ids; of a row with a filter those that it keeps.
  int64_t ids[kMaxSparseQ];
  float values[kMaxSparseQ];
  int64_t count = 0;
  Best rest;               // without an id: all of the law is listed
  bool is_covered = true;  // else `rest` is a draw from a law that the record does not hold
  bool is_whole = false;   // ids that are not listed have no probability
  float lse;               // at temperature 1
  TargetLaw target;
  int64_t only_id = -1;  // of a row without a finite logit: all of the law; else -1

  static RecordRow read(const RejectionParams& p, int64_t row, const RowLaw& law);

  bool has(int64_t id) const;
  float logit(int64_t id) const;

  // False: a padded row, or one that is not covered and has no draw either.
  bool can_draw() const { return only_id >= 0 || rest.id >= 0 || has_finite(); }
  // Status bits of what testing a draft asks and the record does not tell.
  int32_t missing(const DraftLaw& q, int64_t draft) const;

  // Calls f(id, z, p) for every listed id of the law; then for all others as one, at `rest`.
  template <class F>
  void for_each_kept(const F& f) const {
    OrderedSum listed;
    for (int64_t j = 0; j < count; ++j) {
      if (!target.keeps(values[j], ids[j])) continue;
      const float p = target.prob(values[j], ids[j]);
      listed.add(p);
      f(ids[j], values[j], p);
    }
    const float others = 1.0f - listed.value();
    if (rest.id >= 0) f(rest.id, rest.value, others > 0.0f ? others : 0.0f);
  }

  // The best of fmaf(z, 1 / T, noise) among the ids that q does not list.
  Best draw_rest(const DraftLaw& q, const NoiseKey& noise) const;

 private:
  bool has_finite() const;
};

}  // namespace dflash
