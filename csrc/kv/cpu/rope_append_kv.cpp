// rope_append_kv: per-head norm, rotary embedding, and the scatter of K and V into their pages.
//
// A head is widened to fp32 in a scratch row, worked on there, and rounded once on its way out. The
// norm alone has a rounding of its own, to q's dtype, so that it gives the bits of rmsnorm.
//
// Reference: python/dflash_ops/reference/kv.py

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "common/dispatch.h"
#include "common/rms.h"
#include "kv/cpu/kernels.h"
#include "kv/quantise.h"

namespace dflash {
namespace {

using Row = std::vector<float>;

Row load_weight(const ArrayView<1>& weight, int64_t n) {
  Row row(weight ? n : 0);
  (void)with_dtype<float, BF16, F16>(weight.dtype, [&]<class T>(std::type_identity<T>) {
    for (size_t d = 0; d < row.size(); ++d) row[d] = to_float(weight.at<T>(0)[d]);
  });
  return row;
}

template <class T>
void load_head(const T* x, const Row& weight, float eps, Row& head) {
  const auto n = static_cast<int64_t>(head.size());
  if (weight.empty()) {
    for (int64_t d = 0; d < n; ++d) head[d] = to_float(x[d]);
    return;
  }
  const float scale = rms_scale(x, n, eps);
  for (int64_t d = 0; d < n; ++d) {
    head[d] = to_float(from_float<T>(rms_apply(to_float(x[d]), scale, weight[d])));
  }
}

void rotate(const float* cos_sin, int64_t rotary_dim, bool is_neox, Row& head) {
  const int64_t num_pairs = rotary_dim / 2;
  const int64_t pair_stride = is_neox ? 1 : 2, partner = is_neox ? num_pairs : 1;
  for (int64_t i = 0; i < num_pairs; ++i) {
    float& x = head[i * pair_stride];
    float& y = head[i * pair_stride + partner];
    const float cosine = cos_sin[i], sine = cos_sin[num_pairs + i];
    const float rotated = x * cosine - y * sine;
    y = y * cosine + x * sine;
    x = rotated;
  }
}

// Of the finite elements.
float largest_magnitude(const Row& head) {
  float amax = 0.0f;
  for (const float x : head) {
    const float magnitude = std::fabs(x);
    amax = magnitude <= FLT_MAX && magnitude > amax ? magnitude : amax;
  }
  return amax;
}

void store_head(const Row& head, const KvCache& cache, int64_t page, int64_t offset,
                int64_t head_idx) {
  const int64_t* strides = cache.pages.strides;
  const int64_t start = page * strides[0] + offset * strides[1] + head_idx * strides[2];
  const auto store = [&]<class T>(std::type_identity<T>) {
    T* out = static_cast<T*>(cache.pages.data) + start;
    constexpr float kLargest = largest_of<T>();
    if constexpr (kLargest == 0.0f) {
      for (size_t d = 0; d < head.size(); ++d) out[d] = from_float<T>(head[d]);
    } else {
      float scale = 1.0f;
      if (cache.scale.data != nullptr) {
        float* stored = cache.scale.at(page, offset, head_idx);
        if (cache.scale.is_dynamic) {
          *stored = dynamic_scale(largest_magnitude(head), kLargest);
        }
        scale = *stored;
      }
      for (size_t d = 0; d < head.size(); ++d) out[d] = quantise<T>(head[d], scale);
    }
  };
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(cache.pages.dtype, store);
}

template <class T>
struct Lanes {
  const RopeAppendKvParams& p;
  Row q_weight = load_weight(p.q_norm, p.k_cache.head_dim);
  Row k_weight = load_weight(p.k_norm, p.k_cache.head_dim);
  Row k_head = Row(p.k_cache.head_dim);
  Row v_head = Row(p.v_cache.head_dim);

  void load_rotated(const T* x, const Row& weight, int64_t position) {
    load_head(x, weight, p.eps, k_head);
    if (p.cos_sin) rotate(p.cos_sin.at<float>(position), p.rotary_dim, p.is_neox, k_head);
  }

  void write_q(int64_t row, int64_t position) {
    for (int64_t h = 0; h < p.num_q_heads; ++h) {
      T* out = p.out.at<T>(row) + h * p.out.strides[1];
      if (position < 0) {
        std::ranges::fill(k_head, 0.0f);
      } else {
        load_rotated(p.q.at<T>(row) + h * p.q.strides[1], q_weight, position);
      }
      for (size_t d = 0; d < k_head.size(); ++d) {
        out[static_cast<int64_t>(d) * p.out.strides[2]] = from_float<T>(k_head[d]);
      }
    }
  }

  void write_kv(int64_t row, int64_t position, int64_t slot) {
    const int64_t page = slot / p.page_size, offset = slot % p.page_size;
    for (int64_t h = 0; h < p.num_kv_heads; ++h) {
      load_rotated(p.k.at<T>(row) + h * p.k.strides[1], k_weight, position);
      store_head(k_head, p.k_cache, page, offset, h);
      const T* v = p.v.at<T>(row) + h * p.v.strides[1];
      for (size_t d = 0; d < v_head.size(); ++d) v_head[d] = to_float(v[d]);
      store_head(v_head, p.v_cache, page, offset, h);
    }
  }

  void run(int64_t begin, int64_t end) {
    const int64_t num_slots = p.num_pages * p.page_size;
    for (int64_t row = 0; row < p.num_rows; ++row) {
      int64_t position = p.positions[row], slot = p.slots[row];
      const int64_t lane = (slot < 0 ? row : slot) % kNumRowLanes;
      if (lane < begin || lane >= end) continue;
      const bool is_bad = position < -1 || (p.cos_sin && position >= p.max_positions) ||
                          slot < -1 || slot >= num_slots;
      if (is_bad) p.status.add(row, kOutOfRange);
      if (is_bad) position = -1;
      write_q(row, position);
      if (position >= 0 && slot >= 0) write_kv(row, position, slot);
    }
  }
};

}  // namespace

void rope_append_kv_cpu(const RopeAppendKvParams& p, int64_t begin, int64_t end) {
  (void)with_dtype<float, BF16, F16>(
      p.q.dtype, [&]<class T>(std::type_identity<T>) { Lanes<T>{p}.run(begin, end); });
}

}  // namespace dflash
