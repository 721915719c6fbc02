// The laws that rejection verification compares: the target's, from a row's logits, and the
// drafter's, from q.
#pragma once

#include "sample/cpu/row.h"
#include "verify/chain_params.h"
#include "verify/rejection.h"

namespace dflash {

// The target at one row.
struct TargetRow {
  RowLaw law;
  LogitReader reader;
  float lse;  // at temperature 1
  TargetLaw target;
  int64_t only_id;  // of a row without a finite logit: all of the law; else -1

  float logit(int64_t id) const;
  float prob(int64_t id) const;
  float logprob(int64_t id) const;
};

TargetRow target_row(const ArrayView<2>& logits, const LogitOptions& o, const RowSource& source,
                     const RowLaw& law);

// The drafter's law after one row: normalised, without duplicates.
struct DraftLaw {
  int64_t ids[kMaxSparseQ];
  float probs[kMaxSparseQ];
  int64_t count = 0;
  const float* dense = nullptr;  // [vocab_size], not normalised
  int64_t dense_stride = 0;
  float dense_total = 1.0f;

  float prob(int64_t id) const;
  bool has(int64_t id) const;  // of a sparse law
};

// Calls f(id, z) for every id of the row that is in the target's law.
template <class F>
void for_each_kept(const TargetRow& row, const F& f) {
  const IdRange& ids = row.reader.ids;
  for (int64_t span = ids.first_span(); span < ids.last_span(); ++span) {
    float values[kSpan];
    row.reader.read(span, values);
    for (int i = 0; i < kSpan; ++i) {
      const int64_t id = span * kSpan + i;
      if (row.target.keeps(values[i], id)) f(id, values[i]);
    }
  }
}

// False: q is NaN, negative, outside the vocabulary, or sums to nothing.
bool read_draft_law(const RejectionParams& p, int64_t row, bool is_sampled, DraftLaw& q);

// The sum of w.
float residual_mass(const TargetRow& row, const DraftLaw& q, float scale);

// The draw from w, or from p if w is nothing.
Best draw_residual(const TargetRow& row, const DraftLaw& q, float scale, const NoiseKey& noise);

// w of every id, or p if w is nothing.
void write_weights(const TargetRow& row, const DraftLaw& q, float scale, float* weights,
                   int64_t stride, int64_t count);

// What a probe says of rows that nothing reaches.
void clear_probe(const RejectionParams& p);

}  // namespace dflash
