// Scores and weighted values of a block, once for all instruction sets: templates on the vector
// type `V`, and on how elements are multiplied, `P`: as floats, or as words of two bf16.
//
//   score   one fma chain per (pair, key) from zero, k ascending
//   out     = fma(out, alpha, block's), one fma chain per (pair, column) from zero over the
//           positions, ascending. Those that a pair does not see weigh 0, and the sum of a block is
//           never -0, so they change no bit: chains of 64 keep the error of long contexts small.
//
// Width and tile decide only which chains run side by side. `static`: see common/dtype.h.
#pragma once

#include "attention/cpu/block_loads.h"

namespace dflash {

// c[r][n] = sum over i of a[r][i] * b[i][n], plus c[r][n] * alpha[r] if there is an alpha.
// A row of b is P::kParts rows of factors, which meet as many of a.
struct Product {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  const float* alpha;
  int64_t count;  // rows of b, a multiple of kStep
  RowsAhead* ahead;
};

inline constexpr int kStep = 4;       // rows of b between two looks ahead
inline constexpr int kRowsAhead = 2;  // rows that are brought in at each

template <class P, int kRows, int kVecs>
static void product_tile(const Product& p, int64_t row, int64_t col) {
  using V = typename P::Vector;
  typename V::Reg acc[kRows][kVecs];
  const float* a = p.a + row * p.a_stride;
  const float* b_row = p.b + col;
  float* c = p.c + row * p.c_stride + col;
  _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
    _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) acc[r][v] = V::broadcast(0.0f);
  }
  const auto step = [&] {
    typename V::Reg b[kVecs];
    _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) b[v] = V::load(b_row + v * V::kWidth);
    _Pragma("GCC unroll 16") for (int part = 0; part < P::kParts; ++part) {
      typename V::Reg factors[kVecs];
      _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) factors[v] = P::part(b[v], part);
      _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
        const typename V::Reg x = V::broadcast(a[r * p.a_stride + part]);
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
          acc[r][v] = P::multiply_add(x, factors[v], acc[r][v]);
        }
      }
    }
    a += P::kParts;
    b_row += p.b_stride;
  };
  int64_t i = 0;
  for (; i < p.count && p.ahead->next < p.ahead->end; i += kStep) {
    prefetch(*p.ahead, kRowsAhead);
    for (int j = 0; j < kStep; ++j) step();
  }
  for (; i < p.count; ++i) step();
  if (p.alpha == nullptr) {
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
        V::store(c + r * p.c_stride + v * V::kWidth, acc[r][v]);
      }
    }
    return;
  }
  _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
    const typename V::Reg alpha = V::broadcast(p.alpha[row + r]);
    _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
      float* out = c + r * p.c_stride + v * V::kWidth;
      const typename V::Reg sum = V::add(acc[r][v], V::broadcast(0.0f));
      V::store(out, V::fma(V::load(out), alpha, sum));
    }
  }
}

// A tile of `num_rows`, at most kRows.
template <class P, int kRows, int kVecs>
static void product_rows(const Product& p, int64_t num_rows, int64_t row, int64_t col) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      product_tile<P, kRows, kVecs>(p, row, col);
    } else {
      product_rows<P, kRows - 1, kVecs>(p, num_rows, row, col);
    }
  }
}

// The columns from `col` on, as far as whole strips of kVecs go, in tiles of rows as equal as can
// be: low ones leave the units idle. Returns where it ended.
template <class P, int kRows, int kVecs>
static int64_t product_strips(const Product& p, int64_t num_rows, int64_t col, int64_t num_cols) {
  constexpr int kWidth = kVecs * P::Vector::kWidth;
  for (; col + kWidth <= num_cols; col += kWidth) {
    int64_t num_tiles = (num_rows + kRows - 1) / kRows;
    for (int64_t row = 0; num_tiles > 0; --num_tiles) {
      const int64_t count = (num_rows - row) / num_tiles;
      product_rows<P, kRows, kVecs>(p, count, row, col);
      row += count;
    }
  }
  return col;
}

// num_cols is a multiple of kLaneMultiple. One or two rows take wide strips, for chains enough.
template <class P>
static void product(const Product& p, int64_t num_rows, int64_t num_cols) {
  int64_t col = 0;
  if (num_rows <= 2) col = product_strips<P, 2, 2 * P::kVecs>(p, num_rows, col, num_cols);
  col = product_strips<P, P::kRows, P::kVecs>(p, num_rows, col, num_cols);
  product_strips<P, P::kRows, kLaneMultiple / P::Vector::kWidth>(p, num_rows, col, num_cols);
}

template <class P>
static void score(const float* q, int64_t num_pairs, int64_t dim, const float* k, int64_t num_keys,
                  float* scores, RowsAhead& ahead) {
  product<P>({.a = q,
              .a_stride = dim,
              .b = k,
              .b_stride = kBlockKeys,
              .c = scores,
              .c_stride = kBlockKeys,
              .alpha = nullptr,
              .count = dim / P::kElements,
              .ahead = &ahead},
             num_pairs, num_keys);
}

template <class P>
static void accumulate(const SoftmaxBlock& block, const float* values, int64_t num_keys, float* out,
                       int64_t out_dim, RowsAhead& ahead) {
  P::pack_weights(block.scores, block.num_pairs);
  product<P>({.a = block.scores,
              .a_stride = kBlockKeys,
              .b = values,
              .b_stride = out_dim,
              .c = out,
              .c_stride = out_dim,
              .alpha = block.alpha,
              .count = num_keys / P::kElements,
              .ahead = &ahead},
             block.num_pairs, out_dim);
}

// Everything in float.
template <class V, int kTileRows, int kTileVecs>
struct Floats {
  using Vector = V;
  static constexpr int kRows = kTileRows, kVecs = kTileVecs;
  static constexpr int kElements = 1;  // of a row of keys or values in a row of b
  static constexpr int kParts = 1;

  static typename V::Reg part(typename V::Reg b, int) { return b; }
  static typename V::Reg multiply_add(typename V::Reg a, typename V::Reg b, typename V::Reg c) {
    return V::fma(a, b, c);
  }
  static void load_queries(const GatheredRows& in, float* out) { load_rows<V>(in, out, in.dim); }
  static void load_keys(const GatheredRows& in, float* out) { load_transposed<V>(in, out); }
  static void load_values(const GatheredRows& in, float* out, int64_t out_dim) {
    load_rows<V>(in, out, out_dim);
  }
  static void pack_weights(float*, int64_t) {}
};

// Keys and values lie as words of two bf16 elements, the even one in the lower half, and are
// widened as they are multiplied; queries and rounded weights are floats.
template <class V, int kTileRows, int kTileVecs>
struct Bf16Words {
  using Vector = V;
  static constexpr int kRows = kTileRows, kVecs = kTileVecs;
  static constexpr int kElements = 2;
  static constexpr int kParts = 2;

  static typename V::Reg part(typename V::Reg b, int part) {
    return part == 0 ? V::low_half(b) : V::high_half(b);
  }
  static typename V::Reg multiply_add(typename V::Reg a, typename V::Reg b, typename V::Reg c) {
    return V::fma(a, b, c);
  }
  static void load_queries(const GatheredRows& in, float* out) { load_rows<V>(in, out, in.dim); }
  static void load_keys(const GatheredRows& in, float* out) {
    load_transposed<V>(words_of(in), out);
  }
  static void load_values(const GatheredRows& in, float* out, int64_t out_dim) {
    interleave_rows<V>(in, out, out_dim);
  }
  static void pack_weights(float* weights, int64_t num_pairs) {
    for (int64_t i = 0; i < num_pairs * kBlockKeys; i += V::kWidth) {
      V::store(weights + i, V::round_to_bf16(V::load(weights + i)));
    }
  }
};

template <class P>
static constexpr BlockProducts block_products() {
  return {P::load_queries, P::load_keys, P::load_values, score<P>, accumulate<P>};
}

}  // namespace dflash
