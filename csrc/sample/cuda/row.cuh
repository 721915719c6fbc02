// One row of logits on CUDA: how they are read, and what warps and CTAs find in them. Every sum and
// choice is that of the shared headers, so tokens are those of the CPU.
#pragma once

#include "device/vector.cuh"
#include "device/warp.cuh"
#include "sample/ids.h"
#include "sample/lse.h"

namespace dflash {

// Ids first_id .. first_id + 7, first_id a multiple of 8: read, scaled and capped; -inf outside.
static __device__ void load_scaled(const SampleLogitsParams& p, int64_t row, const IdRange& ids,
                                   int64_t first_id, float (&values)[kVector]) {
  for (float& value : values) value = kMinusInf;
  if (first_id >= ids.last || first_id + kVector <= ids.first) return;
  const int64_t column = row * p.logits.strides[0] + first_id - ids.first;
  if (first_id >= ids.first) {
    load_vector(p.logits.data, p.logits.dtype, column, ids.last - first_id, values);
  } else {
    _Pragma("unroll") for (int j = 0; j < kVector; ++j) {
      float one[kVector];
      if (first_id + j < ids.first || first_id + j >= ids.last) continue;
      load_vector(p.logits.data, p.logits.dtype, column + j, 1, one);
      values[j] = one[0];
    }
  }
  for (int j = 0; j < kVector; ++j) {
    if (p.options.logit_scale != 1.0f) values[j] *= p.options.logit_scale;
    if (p.options.softcap != 0.0f) {
      values[j] = p.options.softcap * tanh_f32(values[j] / p.options.softcap);
    }
    if (first_id + j >= ids.last || first_id + j < ids.first) values[j] = kMinusInf;
  }
}

// NaN becomes -inf, +inf the largest float, -0 becomes 0.
static __device__ float cleaned(float value) {
  constexpr float kLargest = 0x1.fffffep127f;
  const float z = value == value ? value : kMinusInf;
  return (z > kLargest ? kLargest : z) + 0.0f;
}

// Consecutive ids of one thread, as a column of shared memory that no other thread touches.
template <int kIds, int kThreads>
struct IdColumn {
  float* values;  // the thread's first, kThreads apart

  __device__ float& operator[](int k) const { return values[k * kThreads]; }

  // Reads and shapes the ids from first_id on, -inf outside `ids`; returns their maximum.
  __device__ float read(const SampleLogitsParams& p, const RowSource& source, const IdRange& ids,
                        int64_t first_id) const {
    const IdColumn& column = *this;
    for (int k = 0; k < kIds; k += kVector) {
      float loaded[kVector];
      load_scaled(p, source.row, ids, first_id + k, loaded);
      for (int j = 0; j < kVector; ++j) column[k + j] = loaded[j];
    }
    for (int64_t j = source.adj_first; j < source.adj_last; ++j) {
      const int64_t id = p.options.adj_ids[j], k = id - first_id;
      const bool is_here = k >= 0 && k < kIds && id >= ids.first && id < ids.last;
      if (is_here) column[static_cast<int>(k)] += *p.options.adj_values.at<float>(j);
    }
    float largest = kMinusInf;
    for (int k = 0; k < kIds; ++k) {
      const uint32_t word = mask_word(p.options, source.mask_row, (first_id + k) / 32);
      const float z = (word >> (k % 32) & 1) != 0 ? cleaned(column[k]) : kMinusInf;
      column[k] = z;
      largest = z > largest ? z : largest;
    }
    return largest;
  }
};

// The lowest id that the row's mask allows; the lowest of all if it allows none; -1 if there are
// no ids. By one warp.
static __device__ int64_t lowest_allowed(const LogitOptions& o, const RowSource& source,
                                         const IdRange& ids) {
  if (ids.first >= ids.last) return -1;
  for (int64_t base = ids.first / 32; base * 32 < ids.last; base += kWarpSize) {
    const int64_t word = base + lane_index();
    uint32_t bits = mask_word(o, source.mask_row, word);
    if (word * 32 < ids.first) bits &= kFullMask << (ids.first - word * 32);
    const int id_in_word = __ffs(static_cast<int>(bits)) - 1;
    const bool is_allowed = bits != 0 && word * 32 + id_in_word < ids.last;
    const int lane = first_lane(is_allowed);
    if (lane == kWarpSize) continue;
    return (base + lane) * 32 + __shfl_sync(kFullMask, id_in_word, lane);
  }
  return ids.first;
}

// A candidate in memory, which is shared or global and not initialised.
struct StoredBest {
  float score;
  float value;
  int64_t id;

  __device__ operator Best() const { return {score, value, id}; }
};

static __device__ StoredBest stored(const Best& best) { return {best.score, best.value, best.id}; }

// Which of a warp's candidates is the best, for every lane.
static __device__ Best best_of_warp(Best best) {
  for (int width = kWarpSize / 2; width > 0; width /= 2) {
    Best other;
    other.score = __shfl_xor_sync(kFullMask, best.score, width);
    other.value = __shfl_xor_sync(kFullMask, best.value, width);
    other.id = __shfl_xor_sync(kFullMask, best.id, width);
    best.offer(other);
  }
  return best;
}

// Five levels of the tree over the nodes of a warp, whose first has a number that 32 divides.
static __device__ LseNode merge_lse_of_warp(LseNode node) {
  for (int width = 1; width < kWarpSize; width *= 2) {
    const LseNode other{__shfl_xor_sync(kFullMask, node.max, width),
                        __shfl_xor_sync(kFullMask, node.sum, width)};
    node = merge_lse(node, other);
  }
  return node;
}

// The log-sum-exp at the row's own temperature is another sum, and the filter asks for it.
static __device__ bool needs_tempered(const RowLaw& law) {
  return law.is_filtered() && law.filter.needs_lse() && law.inv_temperature != 1.0f;
}

static __device__ Best offered(const RowLaw& law, uint64_t key) {
  const float z = key_value(key);
  const int64_t id = key_id(key);
  return {fmaf(z, law.inv_temperature, gumbel_at(law.noise, id)), z, id};
}

// The draw among the first `count` keys, by one warp.
static __device__ Best draw_of_warp(const RowLaw& law, const uint64_t* keys, int64_t count) {
  Best best;
  for (int64_t i = lane_index(); i < count; i += kWarpSize) best.offer(offered(law, keys[i]));
  return best_of_warp(best);
}

}  // namespace dflash
