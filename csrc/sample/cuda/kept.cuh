// What the filter keeps of a row's candidates, in order, and the log-sum-exp of its tiles. By a CTA
// of kFinishBlock threads.
//
// The 64 best of all tiles tell most rows. Where they do not, the CTA passes over the row: in a
// pass each warp finds the 64 best of its share below those already seen. All keys down to the
// highest of the warps' last ones are then known, about half of 512, and are taken in order.
#pragma once

#include "device/top_keys.cuh"
#include "sample/cuda/scan.cuh"

namespace dflash {

struct KeptStorage {
  static constexpr int kWarps = kFinishBlock / kWarpSize;
  static constexpr int kListKeys = kWarps * WarpKeys::kCount;
  static constexpr int kIdsPerThread = 32;
  static constexpr int64_t kIdsPerPass = kIdsPerThread * kFinishBlock;
  using Column = IdColumn<kIdsPerThread, kFinishBlock>;

  uint64_t keys[kListKeys];
  union {
    float columns[kIdsPerThread][kFinishBlock];
    float terms[kListKeys];  // of the keys, when the columns have been read
  };
  uint64_t pending[kWarps][WarpTopKeys::kPending];
  uint64_t reach[kWarps];
};

struct RowContext {
  const SampleLaunch& c;
  const RowTask& task;
  int64_t i;
  IdRange ids;
  KeptStorage& shared;
};

// Merges the nodes of a row's tiles, given by number from the first on: 32 of them make five
// levels.
template <class F>
static __device__ LseNode merge_tiles(int64_t first_tile, int64_t num_tiles, F node_of_tile) {
  LseCarry carry;
  const int64_t last = first_tile + num_tiles;
  for (int64_t group = first_tile / kWarpSize; group * kWarpSize < last; ++group) {
    const int64_t tile = group * kWarpSize + lane_index() - first_tile;
    const bool is_tile = tile >= 0 && tile < num_tiles;
    const LseNode node = is_tile ? node_of_tile(tile) : LseNode{kMinusInf, 0.0f};
    carry.add(group, merge_lse_of_warp(node));
  }
  return carry.total();
}
template <class F>
static __device__ LseNode merge_tiles(const SampleLaunch& c, F node_of_tile) {
  return merge_tiles(c.first_tile, c.num_tiles, node_of_tile);
}

// The 64 best of lists of 64, into keys[kListKeys].
static __device__ void merge_keys(const uint64_t* lists, int64_t num_lists, uint64_t* keys) {
  WarpKeys best;
  for (int64_t list = warp_index(); list < num_lists; list += KeptStorage::kWarps) {
    WarpKeys other;
    other.load(lists + list * WarpKeys::kCount, WarpKeys::kCount);
    best.merge(other);
  }
  for (int width = KeptStorage::kWarps / 2; width > 0; width /= 2) {
    if (warp_index() < 2 * width) best.store(keys + warp_index() * WarpKeys::kCount);
    __syncthreads();
    if (warp_index() < width) {
      WarpKeys other;
      other.load(keys + (warp_index() + width) * WarpKeys::kCount, WarpKeys::kCount);
      best.merge(other);
    }
    __syncthreads();
  }
  if (warp_index() == 0) best.store(keys);
  __syncthreads();
}

static __device__ float term_of(const RowLaw& law, uint64_t key, float largest) {
  return exp_f32(key_value(key) * law.inv_temperature - largest);
}

// Sorts the keys of a pass in descending order.
static __device__ void sort_keys(uint64_t* keys) {
  for (int size = 2; size <= KeptStorage::kListKeys; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < KeptStorage::kListKeys / 2;
           pair += kFinishBlock) {
        const int low = pair / stride * 2 * stride + pair % stride, high = low + stride;
        const uint64_t a = keys[low], b = keys[high];
        const bool is_descending = (low & size) == 0;
        if ((a < b) == is_descending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// One pass: the next keys of the row in order, all below `below`, into shared.keys, and their
// terms; returns how many.
static __device__ int next_keys(const RowContext& row, uint64_t below, float largest) {
  KeptStorage& shared = row.shared;
  __syncthreads();  // the terms of the pass before have been read
  const KeptStorage::Column column{&shared.columns[0][threadIdx.x]};
  WarpTopKeys top(shared.pending[warp_index()]);
  for (int64_t base = row.ids.first / KeptStorage::kIdsPerPass * KeptStorage::kIdsPerPass;
       base < row.ids.last; base += KeptStorage::kIdsPerPass) {
    const int64_t first_id = base + int64_t{KeptStorage::kIdsPerThread} * threadIdx.x;
    column.read(row.c.p, row.task.source, row.ids, first_id);
    _Pragma("unroll 1") for (int k = 0; k < KeptStorage::kIdsPerThread; ++k) {
      const uint64_t key = candidate_key(column[k], first_id + k);
      top.offer(column[k] > kMinusInf && key < below, key);
    }
  }
  const WarpKeys best = top.finish();
  best.store(shared.keys + warp_index() * WarpKeys::kCount);
  const uint64_t least = best.least();
  if (lane_index() == 0) shared.reach[warp_index()] = least;
  __syncthreads();
  uint64_t reach = 1;  // 0 is no key
  for (const uint64_t least_of_warp : shared.reach) reach = max(reach, least_of_warp);
  sort_keys(shared.keys);
  int count = 0;
  for (int first = 0; first < KeptStorage::kListKeys; first += kFinishBlock) {
    const uint64_t key = shared.keys[first + threadIdx.x];
    shared.terms[first + threadIdx.x] = term_of(row.task.law, key, largest);
    count += __syncthreads_count(key >= reach);
  }
  return count;
}

// Calls f(count) for passes over the row: the first `count` of shared.keys are kept. total: see
// PrefixRule. Returns the sum of the terms that are kept. Every thread adds all terms, in order.
template <class F>
static __device__ float for_each_kept_in_passes(const RowContext& row, float largest, float total,
                                                F f) {
  const Filter& filter = row.task.law.filter;
  KeptStorage& shared = row.shared;
  PrefixRule rule(filter, 0.0f, total);
  bool is_summing = filter.needs_top_k_total(), is_done = false;
  OrderedSum sum;
  int64_t num_summed = 0;
  for (uint64_t below = ~uint64_t{0}; !is_done;) {
    const int count = next_keys(row, below, largest);
    if (count > 0) below = shared.keys[count - 1];
    if (is_summing) {
      for (int k = 0; k < count && num_summed < filter.top_k; ++k, ++num_summed) {
        sum.add(shared.terms[k]);
      }
      if (count > 0 && num_summed < filter.top_k) continue;
      is_summing = false;
      rule = PrefixRule(filter, 0.0f, sum.value());
      below = ~uint64_t{0};
      continue;
    }
    int num_kept = 0;
    while (num_kept < count && !rule.is_full() && rule.keep_term(shared.terms[num_kept])) {
      ++num_kept;
    }
    f(num_kept);
    is_done = num_kept < count || count == 0 || rule.is_full();
  }
  return rule.sum();
}

// How many of a row's 64 best keys there are, and how many its filter keeps; -1: more than them.
struct KeptKeys {
  int count;
  int64_t num_kept;
};

// keys, terms: [64], shared; terms are overwritten.
static __device__ KeptKeys kept_of_keys(const RowLaw& law, const uint64_t* keys, float* terms,
                                        float tempered_lse) {
  const float largest = key_value(keys[0]) * law.inv_temperature;
  const bool is_first = threadIdx.x < WarpKeys::kCount;
  if (is_first) terms[threadIdx.x] = term_of(law, keys[threadIdx.x], largest);
  const int count = __syncthreads_count(is_first && keys[threadIdx.x] != 0);
  if (count == 0) return {0, 0};
  const float total = law.filter.needs_lse() ? exp_f32(tempered_lse - largest) : 0.0f;
  return {count, kept_of_terms(
                     law.filter, [&](int64_t k) { return terms[k]; }, count,
                     count < WarpKeys::kCount, total)};
}

// The same, where the 64 best may tell. Without a finite logit f is not called.
template <class F>
static __device__ float for_each_kept(const RowContext& row, float tempered_lse, F f) {
  const RowLaw& law = row.task.law;
  KeptStorage& shared = row.shared;
  merge_keys(row.c.keys + row.i * row.c.num_tiles * WarpKeys::kCount, row.c.num_tiles, shared.keys);
  const KeptKeys kept = kept_of_keys(law, shared.keys, shared.terms, tempered_lse);
  if (kept.count == 0) return 0.0f;
  if (kept.num_kept < 0) {
    const float largest = key_value(shared.keys[0]) * law.inv_temperature;
    const float total = law.filter.needs_lse() ? exp_f32(tempered_lse - largest) : 0.0f;
    return for_each_kept_in_passes(row, largest, total, f);
  }
  f(kept.num_kept);
  OrderedSum sum;
  for (int64_t k = 0; k < kept.num_kept; ++k) sum.add(shared.terms[k]);
  return sum.value();
}

}  // namespace dflash
