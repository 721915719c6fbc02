// Rows before and after the main loop: packing, RMSNorm, epilogue. Plain loops that the compiler
// turns into the vectors of the file's instruction set; included like tile.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/cpu/fp32_row_loops.h"
#include "common/dispatch.h"
#include "common/expf.h"
#include "common/rms.h"
#include "gemm/cpu/block_sums.h"

namespace dflash {
namespace {

template <class V>
int64_t row_bytes(DType dtype, const RowForm& form) {
  int64_t bytes = form.int8_for != Codes::kNone ? Int8Row(form.depth).group_sums()
                                                : element_bytes<V>(dtype, form.depth);
  if (form.group > 0) bytes += (form.depth + form.group - 1) / form.group * sizeof(float);
  // An odd number of cache lines: rows that lie a power of two apart evict each other.
  return ((bytes + 63) / 64 | 1) * 64;
}

constexpr int64_t kPiece = 512;  // elements that a loop over a row keeps on the stack

// to[0 .. count) = elements first .. of the normed row, rounded to T.
template <class T>
void norm_piece(const T* x, float scale, const ArrayView<1>& weight, int64_t first, int64_t count,
                T* to) {
  float weights[kPiece];
  const int64_t bytes = float_bytes(weight.dtype);
  load(static_cast<const char*>(weight.data) + first * bytes, weight.dtype, count, weights);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from_float<T>(rms_apply(to_float(x[first + i]), scale, weights[i]));
  }
}

template <class T>
void pack_words(const T* x, int64_t count, uint32_t* words) {
  static_assert(sizeof(T) == 2);
  for (int64_t i = 0; i < count / 2; ++i) {
    words[i] = static_cast<uint32_t>(x[2 * i].bits) << 16 | x[2 * i + 1].bits;
  }
  if (count % 2) words[count / 2] = static_cast<uint32_t>(x[count - 1].bits) << 16;
}

// Sum of a group: 32 interleaved chains from zero (element i in chain i mod 32), added pairwise.
struct GroupSum {
  static constexpr int kChains = 32;
  float chains[kChains] = {};

  void add(const float* x, int64_t count) {
    int64_t i = 0;
    for (; i + kChains <= count; i += kChains) {
      for (int c = 0; c < kChains; ++c) chains[c] += x[i + c];
    }
    for (int c = 0; i + c < count; ++c) chains[c] += x[i + c];
  }
  float total() {
    for (int width = kChains / 2; width > 0; width /= 2) {
      for (int c = 0; c < width; ++c) chains[c] += chains[c + width];
    }
    return chains[0];
  }
};

template <class V>
void pack_row(const void* row, DType dtype, const RowForm& form, const ArrayView<1>& norm_weight,
              float eps, char* packed) {
  const int64_t depth = form.depth;
  char* end = packed + element_bytes<V>(dtype, depth);
  const int64_t element = has_words<V>(dtype) ? 2 : 4;
  if (form.int8_for == Codes::kNone) std::fill(packed + depth * element, end, 0);
  auto* group_sums = reinterpret_cast<float*>(end);
  (void)with_dtype<float, BF16, F16>(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = static_cast<const T*>(row);
    const float scale = norm_weight ? rms_scale(x, depth, eps) : 0.0f;
    for (int64_t k = 0; k < depth; k += kPiece) {
      const int64_t count = std::min(kPiece, depth - k);
      T normed[kPiece];
      if (norm_weight) norm_piece(x, scale, norm_weight, k, count, normed);
      const T* from = norm_weight ? normed : x + k;
      if (form.int8_for != Codes::kNone) {
        float values[kPiece];
        for (int64_t i = 0; i < count; ++i) values[i] = to_float(from[i]);
        pack_int8_row(values, k, count, form, packed);
        continue;
      }
      if constexpr (V::kHasDot && std::is_same_v<T, BF16>) {
        pack_words(from, count, reinterpret_cast<uint32_t*>(packed) + k / 2);
      } else {
        float* to = reinterpret_cast<float*>(packed) + k;
        for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
      }
      if (form.group > 0) {
        static_assert(kPiece == kPieceK);  // groups do not straddle pieces
        float values[kPiece];
        for (int64_t i = 0; i < count; ++i) values[i] = to_float(from[i]);
        for (int64_t i = 0; i < count; i += form.group) {
          GroupSum sum;
          sum.add(values + i, std::min<int64_t>(form.group, count - i));
          *group_sums++ = sum.total();
        }
      }
    }
  });
}

// out[row, first .. first + count) = values, rounded.
void store_floats(const ArrayOut<2>& out, int64_t row, int64_t first, int64_t count,
                  const float* values) {
  const int64_t bytes = float_bytes(out.dtype), stride = out.strides[1];
  char* to = static_cast<char*>(out.data) + (row * out.strides[0] + first * stride) * bytes;
  __builtin_prefetch(to + count * stride * bytes, 1);  // where the row goes on in the next block
  store(values, count, out.dtype, to, stride);
}

void norm_row(const RmsNormParams& p, int64_t row) {
  (void)with_dtype<float, BF16, F16>(p.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = p.x.at<T>(row);
    const float scale = rms_scale(x, p.depth, p.eps);
    for (int64_t k = 0; k < p.depth; k += kPiece) {
      const int64_t count = std::min(kPiece, p.depth - k);
      T normed[kPiece];
      float values[kPiece];
      norm_piece(x, scale, p.weight, k, count, normed);
      load(normed, p.x.dtype, count, values);
      store_floats(p.out, row, k, count, values);
    }
  });
}

// values[i] += view[row, first + i]
void add_floats(const ArrayView<2>& view, int64_t row, int64_t first, int64_t count,
                float* values) {
  const int64_t bytes = float_bytes(view.dtype);
  const char* from = static_cast<const char*>(view.data) + (row * view.strides[0] + first) * bytes;
  __builtin_prefetch(from + count * bytes);  // where the row goes on in the next block
  add(from, view.dtype, count, values);
}

float silu(float x) { return x / (1.0f + exp_f32(-x)); }

void finish(const VerifyGemmParams& p, int64_t block, int64_t first_row, int64_t num_rows,
            float* sums) {
  const bool is_pair = p.act == Activation::kSiluMul;
  const int width = is_pair ? kBlock / 2 : kBlock;
  const int64_t col = block * width;
  const int64_t count = std::min<int64_t>(width, p.num_outputs - col);
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    float* values = sums + r * kBlock;
    for (const ArrayView<2>* term : {&p.bias, &p.addend}) {
      if (!*term) continue;
      add_floats(*term, row, col, count, values);
      if (is_pair) add_floats(*term, row, p.num_outputs + col, count, values + width);
    }
    if (p.act == Activation::kSilu) {
      for (int i = 0; i < kBlock; ++i) values[i] = silu(values[i]);
    } else if (is_pair) {
      for (int i = 0; i < kBlock / 2; ++i) values[i] = silu(values[i]) * values[kBlock / 2 + i];
    }
    if (p.residual) add_floats(p.residual, row, col, count, values);
    store_floats(p.out, row, col, count, values);
  }
}

template <class V>
constexpr GemmKernels kernels_of() {
  return {row_bytes<V>, pack_row<V>, block_sums<V>, finish, norm_row};
}

}  // namespace
}  // namespace dflash
