// Loops over a span of one row's logits, for the instruction set in use. Everything that decides a
// token is exact: a loop only finds where something can happen, the scalar code of the shared
// headers does it.
#pragma once

#include "common/cpu/isa.h"
#include "common/noise.h"
#include "common/views.h"
#include "sample/lse.h"

namespace dflash {

inline constexpr int kSpan = 512;                      // ids, from a multiple of it
inline constexpr int kSpanBlocks = kSpan / kLseBlock;  // of the log-sum-exp

struct SpanKernels {
  // values[i] = from[i] as fp32, i < count
  void (*load)(const void* from, DType dtype, int64_t count, float* values);
  // Rounds to `round_to` and back, scales, caps (softcap 0: not), in place.
  void (*shape)(float* values, int64_t count, DType round_to, float scale, float softcap);
  // NaN becomes -inf, +inf the largest float, -0 becomes 0.
  void (*clean)(float* values, int64_t count);
  // -inf where the bit of the span's mask is not set.
  void (*mask)(const uint32_t* words, float* values);
  // Of values * inv_temperature: the span's blocks, merged as the tree has them.
  LseNode (*lse)(const float* values, float inv_temperature);
  float (*max)(const float* values);
  // How many are above `value`, or equal to it in the first num_ties places.
  int (*count_better)(const float* values, float value, int num_ties);
  // Which of the kSpan values are at least `threshold`; returns how many.
  int (*at_least)(const float* values, float threshold, uint16_t* where);
  // Which may reach `best` with their noise; words[i] is the word of where[i].
  int (*may_reach)(const float* values, float inv_temperature, const NoiseKey& key,
                   int64_t first_id, float best, uint16_t* where, uint32_t* words);
};

const SpanKernels& span_kernels();  // for the instruction set in use

// Per instruction set; span_kernels() names only those of this architecture.
extern const SpanKernels kSpanPortable, kSpanAvx2, kSpanAvx512;

}  // namespace dflash
