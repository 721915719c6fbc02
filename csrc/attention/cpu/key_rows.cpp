#include "attention/cpu/key_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/kernels.h"
#include "common/dispatch.h"
#include "common/expf.h"
#include "common/logf.h"

namespace dflash {

// `count` rows of a page, from the offset-th on.
static void rows_of_page(const ArrayView<4>& cache, const KvScale& scale, int64_t page,
                         int64_t offset, int64_t kv_head, int64_t count, const void** rows,
                         float* scales) {
  const int64_t* strides = cache.strides;
  const int64_t first = page * strides[0] + offset * strides[1] + kv_head * strides[2];
  for (int64_t i = 0; i < count; ++i) {
    rows[i] = element(cache.data, cache.dtype, first + i * strides[1]);
  }
  if (scale.data == nullptr) return;
  for (int64_t i = 0; i < count; ++i) scales[i] = *scale.at(page, offset + i, kv_head);
}

void gather_keys(const TreeAttentionParams& p, const AttentionRequest& request, int64_t kv_head,
                 int64_t begin, int64_t end, int64_t at, KeyRows& keys) {
  for (int64_t key = begin, next; key < end; key = next) {
    const int64_t idx = key - request.table_begin, offset = idx % p.pages.page_size;
    next = std::min(end, key + p.pages.page_size - offset);
    const int64_t page = p.pages.page(request.state_row, idx / p.pages.page_size);
    if (page < 0) continue;
    const int64_t i = at + key - begin, count = next - key;
    rows_of_page(p.k_cache, p.k_scale, page, offset, kv_head, count, keys.k + i, keys.k_scales + i);
    rows_of_page(p.v_cache, p.v_scale, page, offset, kv_head, count, keys.v + i, keys.v_scales + i);
    keys.present |= ~uint64_t{0} >> (kBlockKeys - count) << i;
  }
}

template <class T>
static void write_row(const TreeAttentionParams& p, int64_t row, int64_t head, const float* acc,
                      float divisor) {
  T* out = p.out.at<T>(row) + head * p.out.strides[1];
  for (int64_t col = 0; col < p.v_dim; ++col) {
    out[col * p.out.strides[2]] = from_float<T>(divisor == 0 ? 0.0f : acc[col] / divisor);
  }
}

float sink_of(const ArrayView<1>& sinks, int64_t head) {
  float sink = -std::numeric_limits<float>::infinity();
  if (!sinks) return sink;
  (void)with_dtype<float, BF16, F16>(
      sinks.dtype, [&]<class T>(T) { sink = to_float(*sinks.at<typename T::type>(head)); });
  return sink;
}

// lse = max + log(sum); a sum is at least 1, or 0 without a key, or NaN.
static float log_sum_exp(float max, float sum) {
  if (sum == 0) return -std::numeric_limits<float>::infinity();
  return std::isnan(sum) ? sum : max + log_f32(sum);
}

// The sink joins the sum under a common maximum.
static void write_pair(const TreeAttentionParams& p, int64_t row, int64_t head, float max,
                       float sum, float* acc, int64_t out_dim) {
  p.lse.at<float>(row)[head * p.lse.strides[1]] = log_sum_exp(max, sum);
  float divisor = sum;
  if (p.sinks && sum != 0) {
    const float sink = sink_of(p.sinks, head);
    const float top = sink > max ? sink : max;
    const float weight = exp_f32(max - top);
    divisor = std::fma(sum, weight, exp_f32(sink - top));
    for (int64_t col = 0; col < out_dim; ++col) acc[col] *= weight;
  }
  (void)with_dtype<float, BF16, F16>(
      p.out.dtype, [&]<class T>(T) { write_row<typename T::type>(p, row, head, acc, divisor); });
}

void write_rows(const TreeAttentionParams& p, int64_t first_row, int64_t num_rows, int64_t kv_head,
                int64_t out_dim, const SoftmaxState& state) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  for (int64_t pair = 0; pair < num_rows * group; ++pair) {
    write_pair(p, first_row + pair / group, kv_head * group + pair % group, state.max[pair],
               state.sum[pair], state.out + pair * out_dim, out_dim);
  }
}

void tree_attention_fill(const TreeAttentionParams& p, const AttentionPlan& plan) {
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < p.num_heads; ++head) {
        write_pair(p, row, head, 0.0f, 0.0f, nullptr, 0);
      }
    }
  };
  int64_t row = 0;
  for (const AttentionRequest& request : plan.requests) {
    fill(row, request.first_row);
    row = request.first_row + request.num_rows;
  }
  fill(row, p.num_rows);
}

}  // namespace dflash
