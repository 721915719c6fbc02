// The target's law after one row, from its logits.
#pragma once

#include "sample/cpu/row.h"
#include "verify/cpu/draft_law.h"
#include "verify/rejection.h"

namespace dflash {

struct TargetRow {
  RowLaw law;
  LogitReader reader;
  float lse;  // at temperature 1
  TargetLaw target;
  int64_t only_id;  // of a row without a finite logit: all of the law; else -1

  static TargetRow read(const RejectionParams& p, int64_t row, const RowLaw& law);

  float logit(int64_t id) const;

  // A row in memory can be drawn from, and tells all that testing a draft asks.
  bool can_draw() const { return true; }
  int32_t missing(const DraftLaw&, int64_t) const { return 0; }

  // Calls f(id, z, p) for every id of the law.
  template <class F>
  void for_each_kept(const F& f) const {
    const IdRange& ids = reader.ids;
    for (int64_t span = first_span(ids); span < last_span(ids); ++span) {
      float values[kSpan];
      reader.read(span, values);
      for (int i = 0; i < kSpan; ++i) {
        const int64_t id = span * kSpan + i;
        if (target.keeps(values[i], id)) f(id, values[i], target.prob(values[i], id));
      }
    }
  }

  // The best of fmaf(z, 1 / T, noise) among the ids that q does not list.
  Best draw_rest(const DraftLaw& q, const NoiseKey& noise) const;
};

}  // namespace dflash
