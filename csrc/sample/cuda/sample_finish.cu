// sample_logits, second kernel: the token of a row from what its tiles say.
//
//   grid   num_rows
//   block  kFinishBlock = 256
//   smem   43 KB
//   reads  the tiles' results; the logits again only where a filter keeps more than 64 ids
//
// The 64 best of all tiles decide most rows with a filter. Where they do not, the CTA passes over
// the row: in a pass each warp finds the 64 best of its share below those already seen. All keys
// down to the highest of the warps' last ones are then known, about half of 512, and are taken in
// order.
//
// Reference: python/dflash_ops/reference/sample.py

#include "device/top_keys.cuh"
#include "sample/cuda/finish.h"
#include "sample/cuda/scan.cuh"

namespace dflash {
namespace {

constexpr int kWarps = kFinishBlock / kWarpSize;
constexpr int kListKeys = kWarps * WarpKeys::kCount;

constexpr int kIdsPerThread = 32;
constexpr int64_t kIdsPerPass = kIdsPerThread * kFinishBlock;
using Column = IdColumn<kIdsPerThread, kFinishBlock>;

struct SharedStorage {
  uint64_t keys[kListKeys];
  union {
    float columns[kIdsPerThread][kFinishBlock];
    float terms[kListKeys];  // of the keys, when the columns have been read
  };
  uint64_t pending[kWarps][WarpTopKeys::kPending];
  uint64_t reach[kWarps];
  StoredBest best[kWarps];
};

struct RowContext {
  const SampleLaunch& c;
  const RowTask& task;
  int64_t i;
  IdRange ids;
  SharedStorage& shared;
};

// Merges the nodes of a row's tiles, given by number: 32 of them make five levels, and what is
// above is a counter's carry, of which lane l keeps level l.
template <class F>
__device__ LseNode merge_tiles(const SampleLaunch& c, F node_of_tile) {
  constexpr LseNode kNothing{kMinusInf, 0.0f};
  LseNode carry = kNothing;
  const auto carry_of = [&](int level) {
    return LseNode{__shfl_sync(kFullMask, carry.max, level),
                   __shfl_sync(kFullMask, carry.sum, level)};
  };
  const int64_t last = c.first_tile + c.num_tiles;
  for (int64_t group = c.first_tile / kWarpSize; group * kWarpSize < last; ++group) {
    const int64_t tile = group * kWarpSize + lane_index() - c.first_tile;
    const bool is_tile = tile >= 0 && tile < c.num_tiles;
    LseNode node = merge_lse_of_warp(is_tile ? node_of_tile(tile) : kNothing);
    int level = 0;
    for (; (group >> level & 1) != 0; ++level) {
      node = merge_lse(carry_of(level), node);
      if (lane_index() == level) carry = kNothing;
    }
    if (lane_index() == level) carry = node;
  }
  LseNode total = kNothing;
  for (int level = 0; level < kWarpSize; ++level) total = merge_lse(carry_of(level), total);
  return total;
}

// The 64 best of all tiles, into shared.keys.
__device__ void merge_keys(const RowContext& row) {
  const uint64_t* lists = row.c.keys + row.i * row.c.num_tiles * WarpKeys::kCount;
  WarpKeys best;
  for (int64_t tile = warp_index(); tile < row.c.num_tiles; tile += kWarps) {
    WarpKeys other;
    other.load(lists + tile * WarpKeys::kCount, WarpKeys::kCount);
    best.merge(other);
  }
  for (int width = kWarps / 2; width > 0; width /= 2) {
    if (warp_index() < 2 * width) best.store(row.shared.keys + warp_index() * WarpKeys::kCount);
    __syncthreads();
    if (warp_index() < width) {
      WarpKeys other;
      other.load(row.shared.keys + (warp_index() + width) * WarpKeys::kCount, WarpKeys::kCount);
      best.merge(other);
    }
    __syncthreads();
  }
  if (warp_index() == 0) best.store(row.shared.keys);
  __syncthreads();
}

__device__ float term_of(const RowLaw& law, uint64_t key, float largest) {
  return exp_f32(key_value(key) * law.inv_temperature - largest);
}

// Sorts shared.keys in descending order.
__device__ void sort_keys(uint64_t* keys) {
  for (int size = 2; size <= kListKeys; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < kListKeys / 2; pair += kFinishBlock) {
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
__device__ int next_keys(const RowContext& row, uint64_t below, float largest) {
  SharedStorage& shared = row.shared;
  __syncthreads();  // the terms of the pass before have been read
  const Column column{&shared.columns[0][threadIdx.x]};
  WarpTopKeys top(shared.pending[warp_index()]);
  for (int64_t base = row.ids.first / kIdsPerPass * kIdsPerPass; base < row.ids.last;
       base += kIdsPerPass) {
    const int64_t first_id = base + int64_t{kIdsPerThread} * threadIdx.x;
    column.read(row.c.p, row.task.source, row.ids, first_id);
    _Pragma("unroll 1") for (int k = 0; k < kIdsPerThread; ++k) {
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
  for (int first = 0; first < kListKeys; first += kFinishBlock) {
    const uint64_t key = shared.keys[first + threadIdx.x];
    shared.terms[first + threadIdx.x] = term_of(row.task.law, key, largest);
    count += __syncthreads_count(key >= reach);
  }
  return count;
}

// The draw of a row whose kept set may be of any size. Every thread adds all terms, in order.
__device__ Best draw_in_passes(const RowContext& row, float tempered_lse) {
  const RowLaw& law = row.task.law;
  const Filter& filter = law.filter;
  SharedStorage& shared = row.shared;
  const float largest = key_value(shared.keys[0]) * law.inv_temperature;
  PrefixRule rule(filter, 0.0f, filter.needs_lse() ? exp_f32(tempered_lse - largest) : 0.0f);
  bool is_summing = filter.needs_top_k_total(), is_done = false;
  OrderedSum sum;
  int64_t num_summed = 0;
  Best best;
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
    for (int k = static_cast<int>(threadIdx.x); k < num_kept; k += kFinishBlock) {
      best.offer(offered(law, shared.keys[k]));
    }
    is_done = num_kept < count || count == 0 || rule.is_full();
  }
  best = best_of_warp(best);
  if (lane_index() == 0) shared.best[warp_index()] = stored(best);
  __syncthreads();
  for (const StoredBest& other : shared.best) best.offer(static_cast<Best>(other));
  return best;
}

// By the whole CTA; the result is warp 0's.
__device__ Best filtered_best(const RowContext& row, float tempered_lse) {
  const RowLaw& law = row.task.law;
  SharedStorage& shared = row.shared;
  merge_keys(row);
  const float largest = key_value(shared.keys[0]) * law.inv_temperature;
  if (threadIdx.x < WarpKeys::kCount) {
    shared.terms[threadIdx.x] = term_of(law, shared.keys[threadIdx.x], largest);
  }
  const int count =
      __syncthreads_count(threadIdx.x < WarpKeys::kCount && shared.keys[threadIdx.x] != 0);
  if (count == 0) return {};
  const float total = law.filter.needs_lse() ? exp_f32(tempered_lse - largest) : 0.0f;
  const int64_t num_kept = kept_of_terms(
      law.filter, [&](int64_t k) { return shared.terms[k]; }, count, count < WarpKeys::kCount,
      total);
  if (num_kept >= 0) return draw_of_warp(law, shared.keys, num_kept);
  return draw_in_passes(row, tempered_lse);
}

__global__ void __launch_bounds__(kFinishBlock, 1)  // registers instead of spills
    sample_finish_kernel(const __grid_constant__ SampleLaunch c) {
  __shared__ SharedStorage shared;
  const int64_t i = blockIdx.x;
  const RowTask task = row_task(c.p, i);
  const RowContext row{c, task, i, id_range(c.p.options), shared};
  int64_t id = -1;
  float logprob = 0.0f;
  int32_t status = task.source.status | task.law.status;
  if (!task.is_padded()) {
    const TileResult* tiles = c.tiles + i * c.num_tiles;
    const float lse = lse_of(merge_tiles(c, [&](int64_t t) { return tiles[t].raw; }));
    Best best;
    if (task.law.is_filtered()) {
      float tempered_lse = lse;
      if (needs_tempered(task.law)) {
        tempered_lse = lse_of(merge_tiles(c, [&](int64_t t) { return tiles[t].tempered; }));
      }
      best = filtered_best(row, tempered_lse);
    } else {
      for (int64_t t = lane_index(); t < c.num_tiles; t += kWarpSize) best.offer(tiles[t].best);
      best = best_of_warp(best);
    }
    if (warp_index() != 0) return;
    if (best.id >= 0) {
      id = best.id;
      logprob = best.value - lse;
    } else {
      id = lowest_allowed(c.p.options, task.source, row.ids);
      logprob = kMinusInf;
      status |= kNoFiniteLogit;
    }
  }
  if (threadIdx.x != 0) return;
  c.p.ids.set(i, id);
  *c.p.logprobs.at<float>(i) = logprob;
  c.p.status.add(i, status);
}

}  // namespace

cudaError_t launch_sample_finish(const SampleLaunch& c, cudaStream_t stream) {
  sample_finish_kernel<<<c.p.options.num_rows, kFinishBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace dflash
