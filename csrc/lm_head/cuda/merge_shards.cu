// merge_shards: each row's best candidates of all shards, and its log-sum-exp.
//
//   grid   num_rows                  one row per CTA
//   block  kWarpSize                 one warp
//   smem   1.5 KB
//   reads  keys and ids once, and once more from the cache if values go with them
//
// Reference: python/dflash_ops/reference/lm_head.py

#include <cfloat>

#include "device/top_keys.cuh"
#include "lm_head/cuda/launch.h"
#include "sample/keys.h"
#include "sample/lse.h"

namespace dflash {
namespace {

constexpr int64_t kMaxId = 0xffffffff;
constexpr int kNowhere = 0x7fffffff;

struct Candidate {
  int64_t id;
  float key;

  __device__ bool is_bad() const { return id < -1 || id >= kMaxId; }
  __device__ bool is_there() const { return id >= 0 && id < kMaxId && key > kMinusInf; }
  // The lowest of these stands for a row without a finite key.
  __device__ bool is_last_resort() const { return id >= 0 && id < kMaxId && key == kMinusInf; }
  __device__ uint64_t order() const { return candidate_key(fminf(key, FLT_MAX) + 0.0f, id); }
};

// Number i of a row's candidates, shard after shard; absent past the last.
__device__ Candidate candidate(const MergeShardsParams& p, int64_t row, int64_t i) {
  if (i >= p.num_shards * p.count) return {-1, kMinusInf};
  const int64_t s = i / p.count, k = i % p.count;
  return {p.ids(s, row, k), p.keys.at<float>(s)[row * p.keys.strides[1] + k * p.keys.strides[2]]};
}

__device__ int64_t lowest_of_warp(int64_t id) {
  for (int stride = kWarpSize / 2; stride > 0; stride /= 2) {
    id = min(id, __shfl_xor_sync(kFullMask, id, stride));
  }
  return id;
}

// Rank after rank, so the bits depend on nothing but the shards.
__device__ float merged_lse(const MergeShardsParams& p, int64_t row) {
  LseNode all{kMinusInf, 0.0f};
  for (int64_t s = 0; s < p.num_shards; ++s) {
    const float lse = p.lse.at<float>(s)[row * p.lse.strides[1]];
    if (lse > kMinusInf) all = merge_lse(all, {fminf(lse, FLT_MAX), 1.0f});
  }
  return lse_of(all);
}

// sources[r] becomes the number of the candidate of rank r: the first, if several are the same.
__device__ void find_sources(const MergeShardsParams& p, int64_t row, const uint64_t* keys,
                             int* sources) {
  for (int r = lane_index(); r < WarpKeys::kCount; r += kWarpSize) sources[r] = kNowhere;
  __syncwarp();
  for (int64_t i = lane_index(); i < p.num_shards * p.count; i += kWarpSize) {
    const Candidate c = candidate(p, row, i);
    if (!c.is_there()) continue;
    const uint64_t key = c.order();
    int r = 0;  // how many keys are larger
    for (int step = WarpKeys::kCount / 2; step > 0; step /= 2)
      r += keys[r + step - 1] > key ? step : 0;
    for (; r < WarpKeys::kCount && keys[r] == key; ++r) {
      atomicMin(sources + r, static_cast<int>(i));
    }
  }
  __syncwarp();
}

__device__ void write(const MergeShardsParams& p, int64_t row, int64_t k, float key, int64_t id,
                      float value) {
  p.out_keys.at<float>(row)[k * p.out_keys.strides[1]] = key;
  p.out_ids.set(row, k, id);
  if (p.has_values) p.out_values.at<float>(row)[k * p.out_values.strides[1]] = value;
}

__global__ void __launch_bounds__(kWarpSize)
    merge_shards_kernel(const __grid_constant__ MergeShardsParams p) {
  __shared__ uint64_t pending[WarpTopKeys::kPending];
  __shared__ uint64_t keys[WarpKeys::kCount];
  __shared__ int sources[WarpKeys::kCount];
  const int64_t row = blockIdx.x, num_candidates = p.num_shards * p.count;
  WarpTopKeys top(pending);
  int64_t lowest = kMaxId;
  bool is_bad = false;
  for (int64_t base = 0; base < num_candidates; base += kWarpSize) {
    const Candidate c = candidate(p, row, base + lane_index());
    is_bad = is_bad || c.is_bad();
    if (c.is_last_resort()) lowest = min(lowest, c.id);
    top.offer(c.is_there(), c.is_there() ? c.order() : 0);
  }
  top.finish().store(keys);
  lowest = lowest_of_warp(lowest);
  __syncwarp();
  if (p.has_values) find_sources(p, row, keys, sources);
  for (int64_t k = lane_index(); k < p.count; k += kWarpSize) {
    const uint64_t key = keys[k];
    if (key != 0) {
      float value = 0.0f;
      if (p.has_values) {
        const int64_t s = sources[k] / p.count, j = sources[k] % p.count;
        value = p.values.at<float>(s)[row * p.values.strides[1] + j * p.values.strides[2]];
      }
      write(p, row, k, key_value(key), key_id(key), value);
    } else {
      const bool is_lowest = k == 0 && lowest < kMaxId;
      write(p, row, k, kMinusInf, is_lowest ? lowest : -1, kMinusInf);
    }
  }
  is_bad = __any_sync(kFullMask, is_bad);
  if (lane_index() != 0) return;
  *p.out_lse.at<float>(row) = merged_lse(p, row);
  if (is_bad) p.status.add(row, kOutOfRange);
}

}  // namespace

cudaError_t launch_merge_shards(const MergeShardsParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  merge_shards_kernel<<<p.num_rows, kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
