// Rows of a tensor into the arrays of a block, once for all instruction sets: templates on the
// vector type `V`. `static`: see common/dtype.h.
#pragma once

#include "attention/cpu/block_ops.h"
#include "common/dispatch.h"

namespace dflash {

inline constexpr int kMaxDim = 256;  // of a head

alignas(64) inline constexpr float kZeroRow[kMaxDim] = {};  // an absent row, in any dtype

template <class T>
static const T* row_at(const GatheredRows& in, int64_t i) {
  const void* row = i < in.num_rows ? in.rows[i] : nullptr;
  return static_cast<const T*>(row == nullptr ? kZeroRow : row);
}

static inline float scale_of(const GatheredRows& in, int64_t i) {
  return in.scales == nullptr || i >= in.num_rows ? 1.0f : in.scales[i];
}

template <class V, class T>
static typename V::Reg load_part(const T* row, int64_t from, int64_t dim) {
  if (from + V::kWidth <= dim) return V::widen(row + from);
  T rest[V::kWidth] = {};
  for (int64_t i = from; i < dim; ++i) rest[i - from] = row[i];
  return V::widen(rest);
}

// rows -> out [num_rows, stride] in float, columns past dim zeroed up to the stride. Without scales
// nothing is multiplied: words of two bf16 come this way, and one may look like a denormal.
template <class V>
static void load_rows(const GatheredRows& in, float* out, int64_t stride) {
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(in.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < in.num_rows; ++i) {
      const auto* row = row_at<typename T::type>(in, i);
      const typename V::Reg scale = V::broadcast(scale_of(in, i));
      int64_t col = 0;
      for (; col < in.dim; col += V::kWidth) {
        const typename V::Reg x = load_part<V>(row, col, in.dim);
        V::store(out + i * stride + col, in.scales == nullptr ? x : V::mul(x, scale));
      }
      for (; col < stride; ++col) out[i * stride + col] = 0.0f;
    }
  });
}

// `in` has rows of T, with or without scales.
template <class V, bool kScaled, class T>
static void transpose_rows(const GatheredRows& in, float* out) {
  for (int64_t key = 0; key < kBlockKeys; key += V::kWidth) {
    const T* rows[V::kWidth];
    float scales[V::kWidth];
    for (int i = 0; i < V::kWidth; ++i) {
      rows[i] = row_at<T>(in, key + i);
      scales[i] = scale_of(in, key + i);
    }
    for (int64_t from = 0; from < in.dim; from += V::kWidth) {
      typename V::Reg tile[V::kWidth];
      for (int i = 0; i < V::kWidth; ++i) {
        tile[i] = load_part<V>(rows[i], from, in.dim);
        if constexpr (kScaled) tile[i] = V::mul(tile[i], V::broadcast(scales[i]));
      }
      V::transpose(tile);
      for (int i = 0; i < V::kWidth && from + i < in.dim; ++i) {
        V::store(out + (from + i) * kBlockKeys + key, tile[i]);
      }
    }
  }
}

template <class V>
static void load_transposed(const GatheredRows& in, float* out) {
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(in.dtype, [&]<class T>(T) {
    if (in.scales == nullptr) {
      transpose_rows<V, false, typename T::type>(in, out);
    } else {
      transpose_rows<V, true, typename T::type>(in, out);
    }
  });
}

template <class V>
static bool all_finite(const GatheredRows& in) {
  typename V::Reg sum = V::broadcast(0.0f);
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(in.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < in.num_rows; ++i) {
      const auto* row = row_at<typename T::type>(in, i);
      const typename V::Reg scale = V::broadcast(scale_of(in, i));
      for (int64_t col = 0; col < in.dim; col += V::kWidth) {
        const typename V::Reg x = V::mul(load_part<V>(row, col, in.dim), scale);
        sum = V::fma(x, V::broadcast(0.0f), sum);  // 0 or NaN
      }
    }
  });
  float lanes[V::kWidth];
  V::store(lanes, sum);
  for (const float lane : lanes) {
    if (lane != 0) return false;
  }
  return true;
}

// bf16 rows as rows of words.
static inline GatheredRows words_of(GatheredRows in) {
  in.dtype = DType::kF32;
  in.dim /= 2;
  return in;
}

// Values of two positions in a word, the even one in the half that `V::interleave` chose.
template <class V>
static void interleave_rows(const GatheredRows& in, float* out, int64_t out_dim) {
  for (int64_t i = 0; i < kBlockKeys; i += 2) {
    const BF16* even = row_at<BF16>(in, i);
    const BF16* odd = row_at<BF16>(in, i + 1);
    float* words = out + i / 2 * out_dim;
    int64_t col = 0;
    for (; col + kLaneMultiple <= in.dim; col += kLaneMultiple) {
      V::interleave(even + col, odd + col, words + col);
    }
    if (col == in.dim) continue;
    BF16 rest[2][kLaneMultiple] = {};
    for (int64_t j = col; j < in.dim; ++j) {
      rest[0][j - col] = even[j];
      rest[1][j - col] = odd[j];
    }
    V::interleave(rest[0], rest[1], words + col);
  }
}

}  // namespace dflash
