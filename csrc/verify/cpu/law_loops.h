// The loops over a span of a law, written for the compiler to vectorise. Only files for one
// instruction set include this: everything is in an unnamed namespace, so that no copy is shared
// between them.
#pragma once

#include "verify/cpu/law.h"
#include "verify/rejection.h"

namespace dflash {
namespace {

void keep(const SpanLaw& law, float* values) {
  for (int i = 0; i < kSpan; ++i) {
    const bool is_kept = values[i] > law.least || (values[i] == law.least && i < law.num_ties);
    values[i] = is_kept ? values[i] : kMinusInf;
  }
}

// 0 for what is not kept. A loop of its own: arithmetic under a condition is not vectorised, as it
// might trap.
void select_kept(const float* values, float* terms) {
  for (int i = 0; i < kSpan; ++i) terms[i] = values[i] > kMinusInf ? terms[i] : 0.0f;
}

void probs(const SpanLaw& law, const float* values, float* probs) {
  for (int i = 0; i < kSpan; ++i) {
    probs[i] = exp_f32(values[i] * law.inv_temperature - law.shift) / law.sum;
  }
  select_kept(values, probs);
}

void residual(float scale, const float* q, int64_t q_stride, float q_total, int64_t count,
              float* probs) {
  if (q_stride == 1) {
    for (int64_t i = 0; i < count; ++i) probs[i] = residual_weight(probs[i], q[i] / q_total, scale);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      probs[i] = residual_weight(probs[i], q[i * q_stride] / q_total, scale);
    }
  }
}

void surprises(const SpanLaw& law, float log_norm, const float* values, float* terms) {
  for (int i = 0; i < kSpan; ++i) {
    const float t = values[i] * law.inv_temperature;
    terms[i] = exp_f32(t - law.shift) / law.sum * (log_norm - t);
  }
  select_kept(values, terms);
}

void logs(float* weights) {
  for (int i = 0; i < kSpan; ++i) {
    weights[i] = is_nothing(weights[i]) ? kMinusInf : log_f32(weights[i]);
  }
}

// A block's sum is a chain of adds, so the blocks' chains go side by side.
float sum(const float* terms) {
  float sums[kSpanBlocks] = {};
  for (int i = 0; i < kLseBlock; ++i) {
    for (int b = 0; b < kSpanBlocks; ++b) sums[b] += terms[b * kLseBlock + i];
  }
  for (int count = kSpanBlocks / 2; count > 0; count /= 2) {
    for (int b = 0; b < count; ++b) sums[b] = sums[2 * b] + sums[2 * b + 1];
  }
  return sums[0];
}

bool are_weights(const float* values, int64_t count) {
  int num_bad = 0;
  for (int64_t i = 0; i < count; ++i) num_bad += !(values[i] >= 0.0f);
  return num_bad == 0;
}

constexpr LawKernels law_loops() {
  return {keep, probs, residual, surprises, logs, sum, are_weights};
}

}  // namespace
}  // namespace dflash
