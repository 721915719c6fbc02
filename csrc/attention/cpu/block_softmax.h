// The softmax of a block, once for all instruction sets: templates on the vector type `V`.
//
//   x       = score * scale, then softcap * tanh(x / softcap); -inf is chosen, whatever the score,
//             for a key that is not visible
//   max     in 16 lanes (offset mod 16), then the lanes pairwise; new max = max(old max, that)
//   weight  = exp(x - new max), so 0 for a key that is not visible
//   sum     = fma(sum, alpha, block's), alpha = exp(old max - new max); the block's weights are
//             added in 16 chains (offset mod 16), then the chains pairwise
//
// `static`: see common/dtype.h.
#pragma once

#include <limits>

#include "attention/cpu/block_ops.h"
#include "common/expf.h"

namespace dflash {

static constexpr float kNoScore = -std::numeric_limits<float>::infinity();
inline constexpr int kChains = 16;

// As the instruction: NaN is dropped from the maximum, and comes back through the weights.
static constexpr float max_f32(float a, float b) { return a > b ? a : b; }

// exp_f32 for an argument that is not positive, with the same bits but for results below the
// normal numbers, which are 0 here. It needs no clamp: what overflows on the way is not chosen.
template <class V>
static typename V::Reg exp_of_difference(typename V::Reg x) {
  constexpr float kLowest = -0x1.5d589ep+6f;  // exp of it is 2^-126
  const auto c = [](float value) { return V::broadcast(value); };
  const typename V::Reg shifted = V::fma(x, c(Exp::kLog2E), c(Exp::kRound));
  const typename V::Reg n = V::sub(shifted, c(Exp::kRound));
  const typename V::Reg r = V::fma(n, c(-Exp::kLn2Low), V::fma(n, c(-Exp::kLn2High), x));
  typename V::Reg p = V::fma(c(Exp::kTo6), r, c(Exp::kTo5));
  p = V::fma(p, r, c(Exp::kTo4));
  p = V::fma(p, r, c(Exp::kTo3));
  p = V::fma(p, r, c(Exp::kTo2));
  const typename V::Reg y = V::add(c(1.0f), V::fma(V::mul(r, r), p, r));
  return V::zero_below(V::mul(y, V::power_of_two(shifted)), x, c(kLowest));
}

// Combines the lanes of V::kWidth pairs: c with c + 8, then + 4, + 2, + 1. The pairs lie side by
// side in a register for it, since within one the lanes would be added one after another.
template <class V, class Combine>
static void fold_lanes(const float (&lanes)[V::kWidth][kChains], Combine combine,
                       float (&result)[V::kWidth]) {
  typename V::Reg folded[kChains];
  for (int part = 0; part < kChains; part += V::kWidth) {
    typename V::Reg tile[V::kWidth];
    for (int i = 0; i < V::kWidth; ++i) tile[i] = V::load(lanes[i] + part);
    V::transpose(tile);
    for (int i = 0; i < V::kWidth; ++i) folded[part + i] = tile[i];
  }
  for (int width = kChains / 2; width > 0; width /= 2) {
    for (int c = 0; c < width; ++c) folded[c] = combine(folded[c], folded[c + width]);
  }
  V::store(result, folded[0]);
}

// x = map(x, i) for the 64 scores of a pair, and the results combined in 16 lanes.
template <class V, class Map, class Combine>
static void map_to_lanes(float* x, Map map, Combine combine, float* lanes) {
  constexpr int kParts = kChains / V::kWidth;
  for (int c = 0; c < kParts; ++c) {
    typename V::Reg local{};
    for (int i = c * V::kWidth; i < kBlockKeys; i += kChains) {
      const typename V::Reg y = map(V::load(x + i), i);
      V::store(x + i, y);
      local = i < kChains ? y : combine(local, y);
    }
    V::store(lanes + c * V::kWidth, local);
  }
}

// The scores of a pair as they enter the softmax, and the maxima of the 16 lanes.
template <class V>
static void finish_scores(const SoftmaxBlock& block, int64_t pair, float* lanes) {
  float* x = block.scores + pair * kBlockKeys;
  typename V::Reg scale = V::broadcast(block.scale);
  if (block.softcap > 0) {
    for (int i = 0; i < kBlockKeys; ++i) {
      x[i] = block.softcap * tanh_f32(x[i] * block.scale / block.softcap);
    }
    scale = V::broadcast(1.0f);
  }
  if (block.visible == nullptr) {
    map_to_lanes<V>(x, [&](auto score, int) { return V::mul(score, scale); }, V::max, lanes);
  } else {
    const int32_t* visible = block.visible + pair / block.group * kBlockKeys;
    const auto hide = [&](auto score, int i) {
      return V::choose(visible + i, V::mul(score, scale), V::broadcast(kNoScore));
    };
    map_to_lanes<V>(x, hide, V::max, lanes);
  }
}

// V::kWidth pairs at a time; what stands in the places of those past the last is not used.
template <class V>
static void softmax(const SoftmaxBlock& block, const SoftmaxState& state) {
  float lanes[V::kWidth][kChains] = {};
  float max[V::kWidth] = {}, sum[V::kWidth] = {};
  for (int64_t first = 0; first < block.num_pairs; first += V::kWidth) {
    const int64_t rest = block.num_pairs - first;
    const int count = rest < V::kWidth ? static_cast<int>(rest) : V::kWidth;
    for (int r = 0; r < count; ++r) {
      max[r] = state.max[first + r];
      sum[r] = state.sum[first + r];
      finish_scores<V>(block, first + r, lanes[r]);
    }
    float new_max[V::kWidth], block_sum[V::kWidth], alpha[V::kWidth];
    fold_lanes<V>(lanes, V::max, new_max);
    for (int r = 0; r < V::kWidth; ++r) new_max[r] = max_f32(max[r], new_max[r]);
    V::store(alpha, exp_of_difference<V>(V::sub(V::load(max), V::load(new_max))));
    for (int r = 0; r < count; ++r) {
      const typename V::Reg row_max = V::broadcast(new_max[r]);
      map_to_lanes<V>(
          block.scores + (first + r) * kBlockKeys,
          [&](auto score, int) { return exp_of_difference<V>(V::sub(score, row_max)); }, V::add,
          lanes[r]);
    }
    fold_lanes<V>(lanes, V::add, block_sum);
    for (int r = 0; r < count; ++r) {
      const float factor = sum[r] == 0 ? 0.0f : alpha[r];  // without keys the old maximum is -inf
      state.max[first + r] = new_max[r];
      state.sum[first + r] = __builtin_fmaf(sum[r], factor, block_sum[r]);
      block.alpha[first + r] = factor;
    }
  }
}

template <class V>
static void merge(const SoftmaxState& a, const SoftmaxState& b, int64_t num_pairs,
                  int64_t out_dim) {
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    float* out_a = a.out + pair * out_dim;
    const float* out_b = b.out + pair * out_dim;
    if (b.sum[pair] == 0) continue;
    if (a.sum[pair] == 0) {  // takes the other's bits
      a.max[pair] = b.max[pair];
      a.sum[pair] = b.sum[pair];
      for (int64_t col = 0; col < out_dim; ++col) out_a[col] = out_b[col];
      continue;
    }
    const float new_max = max_f32(a.max[pair], b.max[pair]);
    const float weight_a = exp_f32(a.max[pair] - new_max);
    const float weight_b = exp_f32(b.max[pair] - new_max);
    a.max[pair] = new_max;
    a.sum[pair] = __builtin_fmaf(b.sum[pair], weight_b, a.sum[pair] * weight_a);
    for (int64_t col = 0; col < out_dim; col += V::kWidth) {
      const typename V::Reg scaled = V::mul(V::load(out_a + col), V::broadcast(weight_a));
      V::store(out_a + col, V::fma(V::broadcast(weight_b), V::load(out_b + col), scaled));
    }
  }
}

}  // namespace dflash
