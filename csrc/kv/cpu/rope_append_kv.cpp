// rope_append_kv: per-head norm, rotary embedding, and the scatter of K and V into their pages.
//
// A head is widened to fp32 in a scratch row, worked on there, and rounded once on its way out. The
// norm alone has a rounding of its own, to q's dtype, so that it gives the bits of rmsnorm.
//
// Reference: python/dflash_ops/reference/kv.py

#include <algorithm>
#include <vector>

#include "common/cpu/fp32_row.h"
#include "common/dispatch.h"
#include "common/quantise.h"
#include "kv/cpu/kernels.h"

namespace dflash {
namespace {

using Row = std::vector<float>;

Row load_weight(const ArrayView<1>& weight, int64_t n) {
  Row row(weight ? n : 0);
  if (weight) row_kernels().load(weight.data, weight.dtype, n, row.data());
  return row;
}

void store_head(const Row& head, const KvCache& cache, int64_t page, int64_t offset,
                int64_t head_idx) {
  const auto n = static_cast<int64_t>(head.size());
  const int64_t* strides = cache.pages.strides;
  const int64_t start = page * strides[0] + offset * strides[1] + head_idx * strides[2];
  const auto store = [&]<class T>(std::type_identity<T>) {
    T* out = static_cast<T*>(cache.pages.data) + start;
    constexpr float kLargest = largest_of<T>();
    if constexpr (kLargest == 0.0f) {
      row_kernels().store(head.data(), n, cache.pages.dtype, out, 1);
    } else {
      float scale = 1.0f;
      if (cache.scale.data != nullptr) {
        float* stored = cache.scale.at(page, offset, head_idx);
        if (cache.scale.is_dynamic) {
          *stored = dynamic_scale(row_kernels().largest_magnitude(head.data(), n), kLargest);
        }
        scale = *stored;
      }
      row_kernels().quantise(head.data(), n, scale, cache.pages.dtype, out);
    }
  };
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(cache.pages.dtype, store);
}

template <class T>
struct Lanes {
  const RopeAppendKvParams& p;
  const RowKernels& kernels = row_kernels();
  Row q_weight = load_weight(p.q_norm, p.k_cache.head_dim);
  Row k_weight = load_weight(p.k_norm, p.k_cache.head_dim);
  Row k_head = Row(p.k_cache.head_dim);
  Row v_head = Row(p.v_cache.head_dim);

  static constexpr DType kDType = dtype_of<T>();

  void load_rotated(const T* x, const Row& weight, int64_t position) {
    const auto n = static_cast<int64_t>(k_head.size());
    kernels.load(x, kDType, n, k_head.data());
    if (!weight.empty()) kernels.norm(weight.data(), p.eps, kDType, n, k_head.data());
    if (!p.cos_sin) return;
    kernels.rotate(p.cos_sin.at<float>(position), p.rotary_dim / 2, p.is_neox, k_head.data());
  }

  void write_q(int64_t row, int64_t position) {
    for (int64_t h = 0; h < p.num_q_heads; ++h) {
      if (position < 0) {
        std::ranges::fill(k_head, 0.0f);
      } else {
        load_rotated(p.q.at<T>(row) + h * p.q.strides[1], q_weight, position);
      }
      kernels.store(k_head.data(), static_cast<int64_t>(k_head.size()), kDType,
                    p.out.at<T>(row) + h * p.out.strides[1], p.out.strides[2]);
    }
  }

  void write_kv(int64_t row, int64_t position, int64_t slot) {
    const int64_t page = slot / p.page_size, offset = slot % p.page_size;
    for (int64_t h = 0; h < p.num_kv_heads; ++h) {
      load_rotated(p.k.at<T>(row) + h * p.k.strides[1], k_weight, position);
      store_head(k_head, p.k_cache, page, offset, h);
      const T* v = p.v.at<T>(row) + h * p.v.strides[1];
      kernels.load(v, kDType, static_cast<int64_t>(v_head.size()), v_head.data());
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
