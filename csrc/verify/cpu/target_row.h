// The target's law after one row, from its logits.
#pragma once

#include "sample/cpu/row.h"
#include "verify/cpu/draft_law.h"
#include "verify/cpu/law.h"
#include "verify/rejection.h"

namespace dflash {

struct TargetRow {
  static constexpr bool kMeetsDenseQ = true;

  RowLaw law;
  LogitReader reader;
  float lse;  // at temperature 1
  TargetLaw target;
  int64_t only_id;  // of a row without a finite logit: all of the law; else -1

  static TargetRow read(const RejectionParams& p, int64_t row, const RowLaw& law);

  float logit(int64_t id) const;
  float entropy() const;

  // Of a dense q: the sum of w, and the draw from it.
  float dense_residual_mass(const DraftLaw& q, float scale) const;
  Best draw_dense_residual(const DraftLaw& q, float scale, const NoiseKey& noise) const;

  // A row in memory can be drawn from, and tells all that testing a draft asks.
  bool can_draw() const { return true; }
  int32_t missing(const DraftLaw&, int64_t) const { return 0; }

  // Calls f(id, z, p) for every id of the law.
  template <class F>
  void for_each_kept(const F& f) const {
    for_each_span([&](const SpanLaw& span_law, int64_t first_id, const float* values) {
      float probs[kSpan];
      law_kernels().probs(span_law, values, probs);
      for (int i = 0; i < kSpan; ++i) {
        if (values[i] > kMinusInf) f(first_id + i, values[i], probs[i]);
      }
    });
  }

  // The best of fmaf(z, 1 / T, noise) among the ids that q does not list.
  Best draw_rest(const DraftLaw& q, const NoiseKey& noise) const;

 private:
  SpanLaw span_law(int64_t first_id) const;

  // Calls f(law, first_id, values) for every span; what is not kept is -inf.
  template <class F>
  void for_each_span(const F& f) const {
    for (int64_t span = first_span(reader.ids); span < last_span(reader.ids); ++span) {
      const SpanLaw kept = span_law(span * kSpan);
      float values[kSpan];
      reader.read(span, values);
      if (target.least != 0) law_kernels().keep(kept, values);
      f(kept, span * kSpan, values);
    }
  }
  // The same with w in place of the logits.
  template <class F>
  void for_each_residual(const DraftLaw& q, float scale, const F& f) const;
};

}  // namespace dflash
