// One row of logits on CUDA: how they are read, and what warps and CTAs find in them. Every sum and
// choice is that of the shared headers, so tokens are those of the CPU.
#pragma once

#include "device/elements.cuh"
#include "device/vector.cuh"
#include "device/warp.cuh"
#include "sample/ids.h"
#include "sample/lse.h"

namespace dflash {

static __device__ float scaled(const LogitOptions& o, float value) {
  if (o.logit_scale != 1.0f) value *= o.logit_scale;
  if (o.softcap != 0.0f) value = o.softcap * tanh_f32(value / o.softcap);
  return value;
}

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
    const bool is_here = first_id + j < ids.last && first_id + j >= ids.first;
    values[j] = is_here ? scaled(p.options, values[j]) : kMinusInf;
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

// A block of 64 ids of the log-sum-exp's tree; `largest` is the largest of its logits z[k].
template <class Logits>
static __device__ LseNode node_of(const Logits& z, float largest, float inv_temperature) {
  const float top = largest * inv_temperature;
  const float shift = top == kMinusInf ? 0.0f : top;
  float sum = 0.0f;
  for (int k = 0; k < kLseBlock; ++k) sum += exp_f32(z[k] * inv_temperature - shift);
  return {top, sum};
}

// The logit of one id, as a column has it.
static __device__ float logit_at(const SampleLogitsParams& p, const RowSource& source,
                                 const IdRange& ids, int64_t id) {
  if (id < ids.first || id >= ids.last) return kMinusInf;
  if (!is_allowed(p.options, source.mask_row, id)) return kMinusInf;
  float z = scaled(p.options, load_element(p.logits, source.row, id - ids.first));
  for (int64_t j = source.adj_first; j < source.adj_last; ++j) {
    if (p.options.adj_ids[j] == id) z += *p.options.adj_values.at<float>(j);
  }
  return cleaned(z);
}

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

// The same tree over nodes that come in ascending number, gaps allowed, to all lanes alike: a
// counter whose digit l, in lane l, is a node of 2^l leaves that has no right sibling yet.
class LseCarry {
 public:
  __device__ void add(int64_t number, LseNode node) {
    int level = 0;
    for (; (number >> level & 1) != 0; ++level) {
      node = merge_lse(digit(level), node);
      if (lane_index() == level) digit_ = kNothing;
    }
    if (lane_index() == level) digit_ = node;
  }
  __device__ LseNode total() const {
    LseNode node = kNothing;
    for (int level = 0; level < kWarpSize; ++level) node = merge_lse(digit(level), node);
    return node;
  }

 private:
  static constexpr LseNode kNothing{kMinusInf, 0.0f};

  __device__ LseNode digit(int level) const {
    return {__shfl_sync(kFullMask, digit_.max, level), __shfl_sync(kFullMask, digit_.sum, level)};
  }

  LseNode digit_ = kNothing;
};

// The draw among a thread's ids, those that are -inf apart. By a warp: the noise of an id is
// bounded from its word, and all lanes look closer only where one may beat the best that the warp
// has seen.
template <int kIds, int kThreads>
static __device__ Best sampled_best(const NoiseKey& noise, float inv_temperature,
                                    const IdColumn<kIds, kThreads>& column, float largest,
                                    int64_t first_id) {
  Best best;
  if (!__any_sync(kFullMask, largest > kMinusInf)) return best;
  float reached = kMinusInf;  // by the warp
  for (int k = 0; k < kIds; k += 4) {
    const Words words = noise_words(noise, static_cast<uint32_t>((first_id + k) >> 2), false);
    for (int j = 0; j < 4; ++j) {
      const float z = column[k + j];
      const float bound = fmaf(z, inv_temperature, gumbel_bound(words.word[j]));
      const bool may_win = z > kMinusInf && bound >= reached;
      if (!__any_sync(kFullMask, may_win)) continue;
      const int64_t id = first_id + k + j;
      if (may_win) {
        const float g = gumbel_at(noise, id, words.word[j]);
        best.offer(fmaf(z, inv_temperature, g), z, id);
      }
      reached = best.id >= 0 ? best.score : kMinusInf;
      for (int width = kWarpSize / 2; width > 0; width /= 2) {
        reached = fmaxf(reached, __shfl_xor_sync(kFullMask, reached, width));
      }
    }
  }
  return best;
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
