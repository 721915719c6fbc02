// The arithmetic of a block, once for all instruction sets: templates on the vector type `V`, so
// that the order of every sum is the same whatever its width.
//
//   score   one fma chain per (pair, key) from zero, k ascending
//   x       = score * scale, then softcap * tanh(x / softcap); -inf is chosen, whatever the score,
//             for a key that is not visible
//   max     in 16 lanes (offset mod 16), then the lanes pairwise; new max = max(old max, that)
//   weight  = exp(x - new max), so 0 for a key that is not visible
//   sum     = fma(sum, alpha, block's), alpha = exp(old max - new max); the block's weights are
//             added in 16 chains (offset mod 16), then the chains pairwise
//   out     = fma(out, alpha, block's), one fma chain from zero per (pair, column) over the visible
//             keys, ascending: chains of 64 keep the error of long contexts small
//
// Width and tile decide only which chains run side by side. `static`: see common/dtype.h.
#pragma once

#include <limits>

#include "attention/cpu/block_ops.h"
#include "common/dispatch.h"
#include "common/expf.h"

namespace dflash {

static constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// As the instruction: NaN is dropped from the maximum, and comes back through the weights.
static constexpr float max_f32(float a, float b) { return a > b ? a : b; }

// --- rows of a tensor -> float ---

template <class V, class T>
static typename V::Reg load_part(const T* row, int64_t from, int64_t dim) {
  if (from + V::kWidth <= dim) return V::widen(row + from);
  T rest[V::kWidth] = {};
  for (int64_t i = from; i < dim; ++i) rest[i - from] = row[i];
  return V::widen(rest);
}

template <class V, class T>
static typename V::Reg load_scaled(const GatheredRows& in, int64_t i, int64_t from) {
  if (i >= in.num_rows || in.rows[i] == nullptr) return V::broadcast(0.0f);
  const typename V::Reg x = load_part<V>(static_cast<const T*>(in.rows[i]), from, in.dim);
  return in.scales == nullptr ? x : V::mul(x, V::broadcast(in.scales[i]));
}

template <class V>
static void load_rows(const GatheredRows& in, float* out, int64_t stride) {
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(in.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < in.num_rows; ++i) {
      int64_t col = 0;
      for (; col < in.dim; col += V::kWidth) {
        V::store(out + i * stride + col, load_scaled<V, typename T::type>(in, i, col));
      }
      for (; col < stride; ++col) out[i * stride + col] = 0.0f;
    }
  });
}

template <class V>
static void load_transposed(const GatheredRows& in, float* out) {
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(in.dtype, [&]<class T>(T) {
    for (int64_t key = 0; key < kBlockKeys; key += V::kWidth) {
      for (int64_t from = 0; from < in.dim; from += V::kWidth) {
        typename V::Reg tile[V::kWidth];
        for (int i = 0; i < V::kWidth; ++i) {
          tile[i] = load_scaled<V, typename T::type>(in, key + i, from);
        }
        V::transpose(tile);
        for (int i = 0; i < V::kWidth && from + i < in.dim; ++i) {
          V::store(out + (from + i) * kBlockKeys + key, tile[i]);
        }
      }
    }
  });
}

// --- products ---

// c[r][n] = sum over i of a[r][offsets[i]] * b[rows[i]][n], plus c[r][n] * alpha[r] if there is an
// alpha. Null lists: i itself.
struct Product {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  const float* alpha;
  int64_t count;
  const int32_t* offsets;
  const int32_t* rows;
};

template <class V, int kRows, int kVecs, bool kListed>
static void product_tile(const Product& p, int64_t row, int64_t col) {
  typename V::Reg acc[kRows][kVecs];
  const float* a = p.a + row * p.a_stride;
  float* c = p.c + row * p.c_stride + col;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = V::broadcast(0.0f);
  }
  for (int64_t i = 0; i < p.count; ++i) {
    const float* a_col = a + (kListed ? p.offsets[i] : i);
    const float* b_row = p.b + (kListed ? p.rows[i] : i) * p.b_stride + col;
    typename V::Reg b[kVecs];
    for (int v = 0; v < kVecs; ++v) b[v] = V::load(b_row + v * V::kWidth);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg x = V::broadcast(a_col[r * p.a_stride]);
      for (int v = 0; v < kVecs; ++v) acc[r][v] = V::fma(x, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      float* out = c + r * p.c_stride + v * V::kWidth;
      const typename V::Reg sum = acc[r][v];
      V::store(out, p.alpha == nullptr ? sum
                                       : V::fma(V::load(out), V::broadcast(p.alpha[row + r]), sum));
    }
  }
}

// All rows of one strip of columns, in tiles of V::kRows rows, then of 2 and 1.
template <class V, int kVecs, bool kListed>
static void product_strip(const Product& p, int64_t num_rows, int64_t col) {
  int64_t row = 0;
  for (; row + V::kRows <= num_rows; row += V::kRows) {
    product_tile<V, V::kRows, kVecs, kListed>(p, row, col);
  }
  for (; row + 2 <= num_rows; row += 2) product_tile<V, 2, kVecs, kListed>(p, row, col);
  for (; row < num_rows; ++row) product_tile<V, 1, kVecs, kListed>(p, row, col);
}

template <class V, bool kListed>
static void product(const Product& p, int64_t num_rows, int64_t num_cols) {
  int64_t col = 0;
  for (; col + V::kVecs * V::kWidth <= num_cols; col += V::kVecs * V::kWidth) {
    product_strip<V, V::kVecs, kListed>(p, num_rows, col);
  }
  constexpr int kPad = kLaneMultiple / V::kWidth;  // num_cols is a multiple of kLaneMultiple
  for (; col < num_cols; col += kPad * V::kWidth) {
    product_strip<V, kPad, kListed>(p, num_rows, col);
  }
}

template <class V>
static void score(const float* q, int64_t num_pairs, int64_t dim, const float* k, float* scores,
                  int64_t score_stride) {
  product<V, false>({.a = q,
                     .a_stride = dim,
                     .b = k,
                     .b_stride = kBlockKeys,
                     .c = scores,
                     .c_stride = score_stride,
                     .alpha = nullptr,
                     .count = dim,
                     .offsets = nullptr,
                     .rows = nullptr},
                    num_pairs, kBlockKeys);
}

template <class V>
static void accumulate(const SoftmaxBlock& block, const KeyList& keys, const float* values,
                       float* out, int64_t out_dim) {
  product<V, true>({.a = block.scores,
                    .a_stride = block.score_stride,
                    .b = values,
                    .b_stride = out_dim,
                    .c = out,
                    .c_stride = out_dim,
                    .alpha = block.alpha,
                    .count = keys.count,
                    .offsets = keys.offset,
                    .rows = keys.row},
                   block.num_pairs, out_dim);
}

// --- softmax: plain loops over 64 offsets, which compilers vectorise as they stand ---

inline constexpr int kChains = 16;

// x = map(x), and the 64 results combined in 16 lanes. Those are a local array until the end: it
// cannot overlap x, as compilers must know to vectorise.
template <class Map, class Combine>
static void map_to_lanes(float* x, Map map, Combine combine, float* lanes) {
  float local[kChains];
  for (int c = 0; c < kChains; ++c) local[c] = x[c] = map(x[c]);
  for (int i = kChains; i < kBlockKeys; i += kChains) {
    for (int c = 0; c < kChains; ++c) {
      const float y = map(x[i + c]);
      x[i + c] = y;
      local[c] = combine(local[c], y);
    }
  }
  for (int c = 0; c < kChains; ++c) lanes[c] = local[c];
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

// Scores of one pair as they enter the softmax.
static void finish_scores(const SoftmaxBlock& block, float* x) {
  for (int i = 0; i < kBlockKeys; ++i) x[i] *= block.scale;
  if (block.softcap > 0) {
    for (int i = 0; i < kBlockKeys; ++i) {
      x[i] = block.softcap * tanh_f32(x[i] / block.softcap);
    }
  }
  if (block.visible != nullptr) {
    for (int i = 0; i < kBlockKeys; ++i) x[i] = block.visible[i] != 0 ? x[i] : kNoScore;
  }
}

// V::kWidth pairs at a time; those past the last stay zero and are not used.
template <class V>
static void softmax(const SoftmaxBlock& block, const SoftmaxState& state) {
  for (int64_t first = 0; first < block.num_pairs; first += V::kWidth) {
    const int64_t rest = block.num_pairs - first;
    const int count = rest < V::kWidth ? static_cast<int>(rest) : V::kWidth;
    float* scores = block.scores + first * block.score_stride;
    float lanes[V::kWidth][kChains] = {};
    float max[V::kWidth] = {}, sum[V::kWidth] = {};
    for (int r = 0; r < count; ++r) {
      max[r] = state.max[first + r];
      sum[r] = state.sum[first + r];
      float* x = scores + r * block.score_stride;
      finish_scores(block, x);
      map_to_lanes(x, [](float score) { return score; }, max_f32, lanes[r]);
    }
    float block_max[V::kWidth], block_sum[V::kWidth], alpha[V::kWidth];
    fold_lanes<V>(lanes, V::max, block_max);
    for (int r = 0; r < V::kWidth; ++r) {
      const float new_max = max_f32(max[r], block_max[r]);
      alpha[r] = exp_f32(max[r] - new_max);
      alpha[r] = sum[r] == 0 ? 0.0f : alpha[r];  // without keys so far the old maximum is -inf
      max[r] = new_max;
    }
    for (int r = 0; r < count; ++r) {
      float* x = scores + r * block.score_stride;
      const float row_max = max[r];
      map_to_lanes(
          x, [&](float score) { return exp_f32(score - row_max); },
          [](float a, float b) { return a + b; }, lanes[r]);
    }
    fold_lanes<V>(lanes, V::add, block_sum);
    for (int r = 0; r < V::kWidth; ++r) sum[r] = __builtin_fmaf(sum[r], alpha[r], block_sum[r]);
    for (int r = 0; r < count; ++r) {
      state.max[first + r] = max[r];
      state.sum[first + r] = sum[r];
      block.alpha[first + r] = alpha[r];
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

template <class V>
static constexpr ScoreOps score_ops() {
  return {load_rows<V>, load_transposed<V>, score<V>};
}

template <class V>
static constexpr BlockOps block_ops() {
  return {score_ops<V>(), {}, softmax<V>, accumulate<V>, merge<V>};
}

}  // namespace dflash
