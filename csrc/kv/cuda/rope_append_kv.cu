// rope_append_kv: per-head norm, rotary embedding, and the scatter of K and V into their pages.
//
//   grid   ceil(num_rows / kRowsPerCta), Hq + Hkv, layers   kRowsPerCta rows of a head of q, or of
//                                                           k and v
//   block  kRowsPerCta * 32                          one warp per row
//   smem   72 B
//   reads  q, k, v from memory once, and again from the cache where a norm or a scale comes first
//
// A head is not kept: each of its elements, or pair of them, is read, normed, rotated and stored
// where it is used; what needs the whole head first (norm, dynamic scale) reads it one time more.
// Of two rows on one slot the higher must stay, whoever runs first. So a CTA of keys and values
// looks through the slots of all rows after its first, while its own rows are on their way.
//
// Reference: python/dflash_ops/reference/kv.py

#include "common/quantise.h"
#include "common/rms.h"
#include "device/rms.cuh"
#include "kv/cuda/launch.h"
#include "kv/plan.h"

namespace dflash {
namespace {

constexpr int kRowsPerCta = kRopeRowsPerCta;

// Where a row goes: position -1, nowhere at all; slot -1, not into the pages.
struct Place {
  int64_t position;
  int64_t slot;
  bool is_bad;
};

__device__ Place place_of(const RopeAppendKvParams& p, int64_t row) {
  const int64_t position = p.positions[row], slot = p.slots[row];
  const bool is_bad = position < -1 || (p.cos_sin && position >= p.max_positions) || slot < -1 ||
                      slot >= p.num_pages * p.page_size;
  return {is_bad ? -1 : position, is_bad || position < 0 ? -1 : slot, is_bad};
}

// One head of one row, as the elements that come of it.
template <class T>
struct Head {
  const T* x;
  int64_t head_dim;
  ArrayView<1> weight;
  float scale;           // of the norm
  const float* cos_sin;  // of the position; null: not rotated
  int64_t rotary_dim;
  bool is_neox;

  __device__ float normed(int64_t d) const {
    const float value = to_float(x[d]);
    if (!weight) return value;
    float w = 1.0f;
    (void)with_dtype<float, BF16, F16>(
        weight.dtype, [&]<class W>(std::type_identity<W>) { w = to_float(weight.at<W>(0)[d]); });
    return to_float(from_float<T>(rms_apply(value, scale, w)));  // rounded like rmsnorm's
  }

  // Calls f(d, value) for each element of this lane.
  template <class F>
  __device__ void for_each(F f) const {
    const int64_t num_pairs = cos_sin != nullptr ? rotary_dim / 2 : 0;
    const int64_t pair_stride = is_neox ? 1 : 2, partner = is_neox ? num_pairs : 1;
    for (int64_t i = lane_index(); i < num_pairs; i += kWarpSize) {
      const int64_t d = i * pair_stride;
      const float a = normed(d), b = normed(d + partner);
      const float cosine = cos_sin[i], sine = cos_sin[num_pairs + i];
      f(d, a * cosine - b * sine);
      f(d + partner, b * cosine + a * sine);
    }
    for (int64_t d = 2 * num_pairs + lane_index(); d < head_dim; d += kWarpSize) f(d, normed(d));
  }

  __device__ float largest_magnitude() const {  // of the finite elements
    float amax = 0.0f;
    for_each([&](int64_t, float value) {
      const float magnitude = fabsf(value);
      if (magnitude <= FLT_MAX && magnitude > amax) amax = magnitude;
    });
    for (int width = kWarpSize / 2; width > 0; width /= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(kFullMask, amax, width));
    }
    return amax;
  }
};

template <class T>
__device__ Head<T> rotated_head(const RopeAppendKvParams& p, const ArrayView<3>& x,
                                const ArrayView<1>& weight, int64_t row, int64_t head_idx,
                                int64_t position) {
  Head<T> head{x.at<T>(row) + head_idx * x.strides[1], p.k_cache.head_dim, weight};
  if (weight) head.scale = warp_rms_scale(head.x, head.head_dim, p.eps);
  if (p.cos_sin) head.cos_sin = p.cos_sin.at<float>(position);
  head.rotary_dim = p.rotary_dim;
  head.is_neox = p.is_neox;
  return head;
}

template <class T>
__device__ void write_q(const RopeAppendKvParams& p, int64_t row, int64_t head_idx) {
  const Place place = place_of(p, row);
  T* out = p.out.at<T>(row) + head_idx * p.out.strides[1];
  if (place.position < 0) {
    for (int64_t d = lane_index(); d < p.k_cache.head_dim; d += kWarpSize) {
      out[d * p.out.strides[2]] = from_float<T>(0.0f);
    }
    return;
  }
  const auto head = rotated_head<T>(p, p.q, p.q_norm, row, head_idx, place.position);
  head.for_each([&](int64_t d, float value) { out[d * p.out.strides[2]] = from_float<T>(value); });
}

template <class T>
__device__ void store_head(const Head<T>& head, const KvCache& cache, int64_t page, int64_t offset,
                           int64_t head_idx) {
  const int64_t* strides = cache.pages.strides;
  const int64_t start = page * strides[0] + offset * strides[1] + head_idx * strides[2];
  const auto store = [&]<class C>(std::type_identity<C>) {
    C* out = static_cast<C*>(cache.pages.data) + start;
    constexpr float kLargest = largest_of<C>();
    if constexpr (kLargest == 0.0f) {
      head.for_each([&](int64_t d, float value) { out[d] = from_float<C>(value); });
    } else {
      float scale = 1.0f;
      if (cache.scale.is_dynamic) {
        scale = dynamic_scale(head.largest_magnitude(), kLargest);
        if (lane_index() == 0) *cache.scale.at(page, offset, head_idx) = scale;
      } else if (cache.scale.data != nullptr) {
        scale = *cache.scale.at(page, offset, head_idx);
      }
      head.for_each([&](int64_t d, float value) { out[d] = quantise<C>(value, scale); });
    }
  };
  (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(cache.pages.dtype, store);
}

// Whether a row after this warp's is stored in the same slot. By the whole CTA.
__device__ bool is_overwritten(const RopeAppendKvParams& p, int64_t first_row, int64_t slot) {
  __shared__ int64_t slots[kRowsPerCta];
  __shared__ uint32_t warps;  // bit w: this warp's row is
  if (lane_index() == 0) slots[warp_index()] = slot;
  if (threadIdx.x == 0) warps = 0;
  __syncthreads();
  for (int64_t row = first_row + 1 + threadIdx.x; row < p.num_rows; row += blockDim.x) {
    const int64_t later = p.slots[row];
    for (int w = 0; w < kRowsPerCta && first_row + w < row; ++w) {
      if (later >= 0 && later == slots[w] && place_of(p, row).slot >= 0) {
        atomicOr(&warps, 1u << w);
      }
    }
  }
  __syncthreads();
  return (warps >> warp_index() & 1) != 0;
}

template <class T>
__device__ void write_kv(const RopeAppendKvParams& p, int64_t first_row, int64_t head_idx) {
  const int64_t row = first_row + warp_index();
  const Place place = row < p.num_rows ? place_of(p, row) : Place{-1, -1, false};
  if (is_overwritten(p, first_row, place.slot) || place.slot < 0) return;
  const int64_t page = place.slot / p.page_size, offset = place.slot % p.page_size;
  const auto k = rotated_head<T>(p, p.k, p.k_norm, row, head_idx, place.position);
  store_head(k, p.k_cache, page, offset, head_idx);
  const Head<T> v{p.v.at<T>(row) + head_idx * p.v.strides[1], p.v_cache.head_dim};
  store_head(v, p.v_cache, page, offset, head_idx);
}

template <class T>
__device__ __forceinline__ void append(const RopeAppendKvParams& p) {
  const int64_t first_row = int64_t{blockIdx.x} * kRowsPerCta, row = first_row + warp_index();
  const int64_t head_idx = blockIdx.y;
  if (head_idx == 0 && row < p.num_rows && lane_index() == 0 && p.status.data != nullptr &&
      place_of(p, row).is_bad) {
    atomicOr(p.status.data + row * p.status.stride, kOutOfRange);  // layers share the row's
  }
  if (head_idx < p.num_q_heads) {
    if (row < p.num_rows) write_q<T>(p, row, head_idx);
  } else if (head_idx < p.num_q_heads + p.num_kv_heads) {
    write_kv<T>(p, first_row, head_idx - p.num_q_heads);
  }
}

__device__ __forceinline__ void append_rows(const RopeAppendKvParams& p) {
  switch (p.k.dtype) {
    case DType::kBF16: return append<BF16>(p);
    case DType::kF16: return append<F16>(p);
    default: return append<float>(p);
  }
}

__global__ void __launch_bounds__(kRowsPerCta* kWarpSize)
    rope_append_kv_kernel(const __grid_constant__ RopeAppendKvParams p) {
  append_rows(p);
}

__global__ void __launch_bounds__(kRowsPerCta* kWarpSize)
    rope_append_layers_kernel(const __grid_constant__ RopeAppendLayers p) {
  append_rows(p.layers[blockIdx.z]);
}

}  // namespace

cudaError_t launch_rope_append_kv(const RopeAppendKvParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const dim3 grid(static_cast<uint32_t>(rope_row_ctas(p.num_rows)),
                  static_cast<uint32_t>(rope_head_ctas(p.num_q_heads, p.num_kv_heads)));
  rope_append_kv_kernel<<<grid, kRowsPerCta * kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_rope_append_layers(const RopeAppendLayers& p, int64_t num_layers,
                                      cudaStream_t stream) {
  int64_t num_heads = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    num_heads = std::max(num_heads, p.layers[i].num_kv_heads);
  }
  const dim3 grid(static_cast<uint32_t>(rope_row_ctas(p.layers[0].num_rows)),
                  static_cast<uint32_t>(rope_head_ctas(0, num_heads)),
                  static_cast<uint32_t>(num_layers));
  rope_append_layers_kernel<<<grid, kRowsPerCta * kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
