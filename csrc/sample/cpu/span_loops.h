// The span loops, written for the compiler to vectorise. Only files for one instruction set include
// this: everything is in an unnamed namespace, so that no copy is shared between them.
#pragma once

#include "common/dispatch.h"
#include "common/expf.h"
#include "sample/cpu/span.h"

namespace dflash {
namespace {

void load(const void* from, DType dtype, int64_t count, float* values) {
  (void)with_dtype<float, BF16, F16>(dtype, [&](auto type) {
    const auto* elements = static_cast<const typename decltype(type)::type*>(from);
    for (int64_t i = 0; i < count; ++i) values[i] = to_float(elements[i]);
  });
}

void shape(float* values, int64_t count, DType round_to, float scale, float softcap) {
  (void)with_dtype<BF16, F16>(round_to, [&](auto type) {  // fp32: nothing to round
    using T = typename decltype(type)::type;
    for (int64_t i = 0; i < count; ++i) values[i] = to_float(from_float<T>(values[i]));
  });
  if (scale != 1.0f) {
    for (int64_t i = 0; i < count; ++i) values[i] *= scale;
  }
  if (softcap != 0.0f) {
    for (int64_t i = 0; i < count; ++i) values[i] = softcap * tanh_f32(values[i] / softcap);
  }
}

void clean(float* values, int64_t count) {
  constexpr float kLargest = 0x1.fffffep127f;
  for (int64_t i = 0; i < count; ++i) {
    float z = values[i];
    z = z == z ? z : kMinusInf;
    z = z > kLargest ? kLargest : z;
    values[i] = z + 0.0f;
  }
}

float block_max(const float* values) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = values[l];
  for (int i = kLanes; i < kLseBlock; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = values[i + l] > lanes[l] ? values[i + l] : lanes[l];
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) {
      lanes[l] = lanes[l + width] > lanes[l] ? lanes[l + width] : lanes[l];
    }
  }
  return lanes[0];
}

float span_max(const float* values) {
  float max = block_max(values);
  for (int b = 1; b < kSpanBlocks; ++b) {
    const float other = block_max(values + b * kLseBlock);
    max = other > max ? other : max;
  }
  return max;
}

// A block's sum is a chain of adds, so the blocks' chains go side by side.
LseNode lse(const float* values, float inv_temperature) {
  LseNode nodes[kSpanBlocks];
  alignas(64) float terms[kSpanBlocks][kLseBlock];
  float shifts[kSpanBlocks];
  for (int b = 0; b < kSpanBlocks; ++b) {
    const float max = block_max(values + b * kLseBlock) * inv_temperature;
    nodes[b] = {max, 0.0f};
    shifts[b] = max == kMinusInf ? 0.0f : max;
  }
  for (int b = 0; b < kSpanBlocks; ++b) {
    const float* z = values + b * kLseBlock;
    for (int i = 0; i < kLseBlock; ++i) {
      terms[b][i] = exp_not_positive(z[i] * inv_temperature - shifts[b]);
    }
  }
  float sums[kSpanBlocks] = {};
  for (int i = 0; i < kLseBlock; ++i) {
    for (int b = 0; b < kSpanBlocks; ++b) sums[b] += terms[b][i];
  }
  for (int b = 0; b < kSpanBlocks; ++b) nodes[b].sum = sums[b];
  for (int count = kSpanBlocks / 2; count > 0; count /= 2) {
    for (int b = 0; b < count; ++b) nodes[b] = merge_lse(nodes[2 * b], nodes[2 * b + 1]);
  }
  return nodes[0];
}

void mask(const uint32_t* words, float* values) {
  for (int i = 0; i < kSpan; ++i) {
    values[i] = (words[i / 32] >> (i % 32) & 1) != 0 ? values[i] : kMinusInf;
  }
}

int count_better(const float* values, float value, int num_ties) {
  int count = 0;
  for (int i = 0; i < kSpan; ++i) {
    count += values[i] > value || (values[i] == value && i < num_ties);
  }
  return count;
}

int at_least(const float* values, float threshold, uint16_t* where) {
  int count = 0;
  for (int first = 0; first < kSpan; first += kLseBlock) {
    int any = 0;
    for (int i = first; i < first + kLseBlock; ++i) any |= values[i] >= threshold;
    if (!any) continue;
    for (int i = first; i < first + kLseBlock; ++i) {
      where[count] = static_cast<uint16_t>(i);
      count += values[i] >= threshold;
    }
  }
  return count;
}

// Noise(key).block: the words of a block of ids.
template <class Noise>
int may_reach(const float* values, float inv_temperature, const NoiseKey& key, int64_t first_id,
              float best, uint16_t* where, uint32_t* found) {
  const Noise noise{key};
  int count = 0;
  for (int first = 0; first < kSpan; first += kLseBlock) {
    const float* z = values + first;
    int any = 0;
    for (int i = 0; i < kLseBlock; ++i) {
      any |= std::fma(z[i], inv_temperature, kGumbelMax) >= best;
    }
    if (!any) continue;
    alignas(64) uint32_t words[kLseBlock];
    noise.block(static_cast<uint32_t>((first_id + first) >> 2), words);
    any = 0;
    for (int i = 0; i < kLseBlock; ++i) {
      any |= std::fma(z[i], inv_temperature, gumbel_bound(words[i])) >= best;
    }
    if (!any) continue;
    for (int i = 0; i < kLseBlock; ++i) {
      where[count] = static_cast<uint16_t>(first + i);
      found[count] = words[i];
      count += z[i] > kMinusInf && std::fma(z[i], inv_temperature, gumbel_bound(words[i])) >= best;
    }
  }
  return count;
}

template <class Noise>
constexpr SpanKernels span_loops() {
  return {load, shape, clean, mask, lse, span_max, count_better, at_least, may_reach<Noise>};
}

}  // namespace
}  // namespace dflash
