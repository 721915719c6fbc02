// The drafter's law after one row: normalised, without duplicates, by the target's ids.
#pragma once

#include <vector>

#include "verify/chain_params.h"

namespace dflash {

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

// False: q is NaN, negative, of ids that are no tokens, or sums to nothing. scattered: where a
// dense q of a smaller vocabulary goes; the law points to it.
bool read_draft_law(const RejectionParams& p, int64_t row, bool is_sampled,
                    std::vector<float>& scattered, DraftLaw& q);

}  // namespace dflash
