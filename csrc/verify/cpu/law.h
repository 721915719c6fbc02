// Loops over a span of ids of a target's law, for the instruction set in use; span.h has those over
// logits. What a span adds to a sum over the vocabulary is its eight blocks of 64 ids, as the tree
// has them.
#pragma once

#include "sample/cpu/span.h"

namespace dflash {

// TargetLaw, and what it keeps of one span: logits above `least`, and those equal to it in the
// first `num_ties` places.
struct SpanLaw {
  float inv_temperature;
  float shift;
  float sum;
  float least;
  int num_ties;
};

struct LawKernels {
  // -inf for what the law does not keep, in place.
  void (*keep)(const SpanLaw& law, float* values);
  // The probabilities of kept logits.
  void (*probs)(const SpanLaw& law, const float* values, float* probs);
  // residual_weight of each, in place of its probability; q has `count` elements, none is 0.
  void (*residual)(float scale, const float* q, int64_t q_stride, float q_total, int64_t count,
                   float* probs);
  // -p log p of kept logits.
  void (*surprises)(const SpanLaw& law, float log_norm, const float* values, float* terms);
  // log of a weight, -inf of one that is_nothing, in place.
  void (*logs)(float* weights);
  float (*sum)(const float* terms);
  // Whether all are numbers and none is negative.
  bool (*are_weights)(const float* values, int64_t count);
};

const LawKernels& law_kernels();  // for the instruction set in use

// Per instruction set; law_kernels() names only those of this architecture.
extern const LawKernels kLawPortable, kLawAvx2, kLawAvx512;

}  // namespace dflash
