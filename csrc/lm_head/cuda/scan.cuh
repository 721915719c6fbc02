// What a CTA of an lm_head op makes of the sums of a tile: logits, then what each of its rows
// wants to know of them.
#pragma once

#include "device/elements.cuh"
#include "device/ptx.cuh"
#include "gemm/cuda/product.cuh"
#include "lm_head/cuda/finish.cuh"
#include "lm_head/cuda/flags.cuh"
#include "lm_head/cuda/head.h"

namespace dflash {

// A logit before added terms and mask.
static __device__ float shaped(const HeadParams& p, int64_t column, float sum) {
  if (p.bias) sum += load_element({p.bias.data, p.bias.dtype, {0, 1}}, 0, column);
  if (p.round_to == DType::kBF16) sum = to_float(from_float<BF16>(sum));
  if (p.round_to == DType::kF16) sum = to_float(from_float<F16>(sum));
  return scaled(p.options, sum);
}

// The k-th id given for row i; -1: none of this shard.
static __device__ int64_t given_id(const HeadLaunch& c, int64_t i, int64_t k) {
  const IdRange ids = id_range(c.head.options);
  const int64_t id = k < c.ids.num_cols ? c.ids(i, k) : -1;
  return id >= ids.first && id < ids.last ? id : -1;
}

// Where it stands among the rows of the weight; -1: nowhere.
static __device__ int64_t given_place(const HeadLaunch& c, int64_t i, int64_t k) {
  const int64_t id = given_id(c, i, k);
  return id < 0 ? -1 : id - id_range(c.head.options).first;
}

// The product with the first num_tokens rows.
static __device__ ProductParams head_product(const HeadLaunch& c, int64_t num_tokens) {
  return {{c.x, c.head.h.dtype, {c.plan.x_pitch, 1}}, c.head.weight, num_tokens};
}

// The key of that id, whose sum is known; 0: no finite logit here.
static __device__ uint64_t given_key(const HeadLaunch& c, const HeadRow& row, int64_t id,
                                     float sum) {
  const LogitOptions& o = c.head.options;
  if (id < 0 || !is_allowed(o, row.source.mask_row, id)) return 0;
  float z = shaped(c.head, id - id_range(o).first, sum);
  for (int64_t a = row.source.adj_first; a < row.source.adj_last; ++a) {
    if (o.adj_ids[a] == id) z += *o.adj_values.at<float>(a);
  }
  z = cleaned(z);
  return z > kMinusInf ? candidate_key(z, id) : 0;
}

// Calls f in each lane that has a turn, the lowest first.
template <class F>
static __device__ void one_by_one(bool has_turn, F f) {
  for (uint32_t lanes = __ballot_sync(kFullMask, has_turn); lanes != 0; lanes &= lanes - 1) {
    if (lane_index() == __ffs(static_cast<int>(lanes)) - 1) f();
    __syncwarp();
  }
}

// What a CTA keeps of its rows.
template <int kIds, int kTokens>
struct HeadStorage {
  uint64_t lists[kTokens][WarpKeys::kCount];  // kTop: the best keys; kRanks: counts
  StoredBest bests[kTokens];
  TileNodes nodes[kIds / kLseBlock][kTokens];
  HeadRow rows[kTokens];
  int64_t slots[kTokens];  // of kStore; -1: none
};

// Memory of as many warps, while they pick.
template <int kWarps>
using PendingKeys = uint64_t[kWarps][WarpTopKeys::kPending];

// The rows of a CTA, by its first kWarps warps. A warp owns every kWarps-th row of the tile; only
// sums of 64 ids are shared out otherwise, a thread each, as they are chains.
template <int kIds, int kTokens, int kWarps>
struct HeadScan {
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kBarrier = 1;  // of these threads

  const HeadLaunch& c;
  HeadStorage<kIds, kTokens>& shared;
  PendingKeys<kWarps>& pending;
  float* const sums;  // [kTokens][kIds + 4]   of a tile
  const int64_t first_token;
  const IdRange ids;

  __device__ HeadScan(const HeadLaunch& launch, HeadStorage<kIds, kTokens>& storage,
                      uint64_t (&keys)[kWarps][WarpTopKeys::kPending], float* plane, int64_t token)
      : c(launch),
        shared(storage),
        pending(keys),
        sums(plane),
        first_token(token),
        ids(id_range(launch.head.options)) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < kTokens) {
      if (i < num_tokens()) {
        shared.rows[i] = c.rows[first_token + i];
      } else {
        shared.rows[i].source.row = -1;
      }
      shared.bests[i] = stored({});
    }
    for (int k = i; k < kTokens * WarpKeys::kCount; k += kThreads) {
      shared.lists[k / WarpKeys::kCount][k % WarpKeys::kCount] = 0;
    }
    sync();
  }

  __device__ static void sync() { barrier_sync(kBarrier, kThreads); }

  __device__ int64_t num_tokens() const {
    return min(c.plan.tile_rows, c.head.options.num_rows - first_token);
  }

  template <class F>
  __device__ void for_own_rows(F f) const {
    _Pragma("unroll 1") for (int token = warp_index(); token < kTokens; token += kWarps) {
      if (!shared.rows[token].is_padded()) f(token, shared.rows[token]);
    }
  }
  __device__ float* logits(int token) const { return sums + token * (kIds + 4); }

  // Sums become logits, in place; -inf outside the vocabulary.
  __device__ void shape(const HeadRow& row, int64_t first_id, float* z) const {
    const LogitOptions& o = c.head.options;
    const auto is_id = [&](int r) { return first_id + r >= ids.first && first_id + r < ids.last; };
    _Pragma("unroll 1") for (int r = lane_index(); r < kIds; r += kWarpSize) {
      if (is_id(r)) z[r] = shaped(c.head, first_id + r - ids.first, z[r]);
    }
    __syncwarp();
    for (int64_t base = row.source.adj_first; base < row.source.adj_last; base += kWarpSize) {
      const int64_t j = base + lane_index();
      const int64_t r = j < row.source.adj_last ? o.adj_ids[j] - first_id : -1;
      const bool is_here = r >= 0 && r < kIds && is_id(static_cast<int>(r));
      one_by_one(is_here, [&] { z[r] += *o.adj_values.at<float>(j); });  // an id may be there twice
    }
    _Pragma("unroll 1") for (int r = lane_index(); r < kIds; r += kWarpSize) {
      const bool is_there = is_id(r) && is_allowed(o, row.source.mask_row, first_id + r);
      z[r] = is_there ? cleaned(z[r]) : kMinusInf;
    }
  }

  // This thread's block of 64 ids of one row.
  __device__ void sum_block() const {
    const int token = static_cast<int>(threadIdx.x) % kTokens;
    const int block = static_cast<int>(threadIdx.x) / kTokens;
    if (block >= kIds / kLseBlock) return;
    const HeadRow& row = shared.rows[token];
    if (row.is_padded()) return;
    const float* z = logits(token) + block * kLseBlock;
    float largest = kMinusInf;
    for (int k = 0; k < kLseBlock; ++k) largest = fmaxf(largest, z[k]);
    TileNodes nodes{node_of(z, largest, 1.0f), {kMinusInf, 0.0f}};
    if (row.has_tempered) nodes.tempered = node_of(z, largest, row.law.inv_temperature);
    shared.nodes[block][token] = nodes;
  }

  __device__ void store_nodes(int64_t tile) const {
    const int token = static_cast<int>(threadIdx.x);
    if (token >= kTokens || shared.rows[token].is_padded()) return;
    const auto merged = [&](LseNode TileNodes::* node) {
      const auto pair = [&](int b) {
        return merge_lse(shared.nodes[b][token].*node, shared.nodes[b + 1][token].*node);
      };
      if constexpr (kIds == 2 * kLseBlock) {
        return pair(0);
      } else {
        static_assert(kIds == 4 * kLseBlock);
        return merge_lse(pair(0), pair(2));
      }
    };
    const int64_t i = (first_token + token) * c.plan.num_tiles + tile;
    c.nodes[i] = {merged(&TileNodes::raw), merged(&TileNodes::tempered)};
  }

  // Of the given ids those in this tile: their logits are results, and they are taken out.
  __device__ void take_listed(int token, int64_t first_id, float* z, bool takes_out) const {
    const int64_t i = first_token + token;
    for (int64_t k = lane_index(); k < c.ids.num_cols; k += kWarpSize) {
      const int64_t r = c.ids(i, k) - first_id;
      if (r >= 0 && r < kIds) c.values.at<float>(i)[k * c.values.strides[1]] = z[r];
    }
    __syncwarp();
    if (!takes_out) return;
    for (int64_t base = 0; base < c.ids.num_cols; base += kWarpSize) {
      const int64_t k = base + lane_index();
      const int64_t r = k < c.ids.num_cols ? c.ids(i, k) - first_id : -1;
      one_by_one(r >= 0 && r < kIds, [&] { z[r] = kMinusInf; });
    }
  }

  __device__ void pick_largest(int token, int64_t first_id, const float* z) const {
    Best best;
    for (int r = lane_index(); r < kIds; r += kWarpSize) {
      if (z[r] > kMinusInf) best.offer(z[r], z[r], first_id + r);
    }
    keep_best(token, best);
  }

  // The noise of an id is bounded from its word; only what may beat the best so far needs it.
  __device__ void pick_noisy(int token, const RowLaw& law, int64_t first_id, const float* z) const {
    Best best = shared.bests[token];
    for (int first = 4 * lane_index(); first < kIds; first += 4 * kWarpSize) {
      const int64_t id = first_id + first;
      const Words words = noise_words(law.noise, static_cast<uint32_t>(id >> 2), false);
      for (int j = 0; j < 4; ++j) {
        const float value = z[first + j];
        const float bound = fmaf(value, law.inv_temperature, gumbel_bound(words.word[j]));
        if (!(value > kMinusInf) || (best.id >= 0 && bound < best.score)) continue;
        const float g = gumbel_at(law.noise, id + j, words.word[j]);
        best.offer(fmaf(value, law.inv_temperature, g), value, id + j);
      }
    }
    keep_best(token, best);
  }

  __device__ void keep_best(int token, Best best) const {
    best = best_of_warp(best);
    best.offer(shared.bests[token]);
    __syncwarp();
    if (lane_index() == 0) shared.bests[token] = stored(best);
  }

  __device__ void pick_top(int token, int64_t first_id, const float* z) const {
    WarpKeys best;
    best.load(shared.lists[token], WarpKeys::kCount);
    WarpTopKeys top(pending[warp_index()], best);
    _Pragma("unroll 1") for (int r = lane_index(); r < kIds; r += kWarpSize) {
      top.offer(z[r] > kMinusInf, candidate_key(z[r], first_id + r));
    }
    top.finish().store(shared.lists[token]);
  }

  __device__ void count_better(int token, int64_t first_id, const float* z) const {
    const uint64_t* given = c.given_keys + (first_token + token) * c.ids.num_cols;
    _Pragma("unroll 1") for (int64_t k = 0; k < c.ids.num_cols; ++k) {
      const uint64_t key = given[k];
      int better = 0;
      for (int r = lane_index(); r < kIds; r += kWarpSize) {
        better += z[r] > kMinusInf && candidate_key(z[r], first_id + r) > key;
      }
      better = __reduce_add_sync(kFullMask, better);
      if (lane_index() == 0) shared.lists[token][k] += better;
    }
  }

  // Of a tile's sums, which have become logits then.
  __device__ void take(int64_t tile) const {
    const int64_t first_id = (c.plan.first_tile + tile) * kIds;
    for_own_rows([&](int token, const HeadRow& row) { shape(row, first_id, logits(token)); });
    sync();
    sum_block();
    sync();
    store_nodes(tile);
    for_own_rows([&](int token, const HeadRow& row) {
      float* z = logits(token);
      if (c.op == HeadOp::kVerify) take_listed(token, first_id, z, row.pick == Pick::kNoisy);
      switch (row.pick) {
        case Pick::kLargest: pick_largest(token, first_id, z); break;
        case Pick::kNoisy: pick_noisy(token, row.law, first_id, z); break;
        case Pick::kTop: pick_top(token, first_id, z); break;
        case Pick::kRanks: count_better(token, first_id, z); break;
      }
    });
    sync();  // the logits' memory is free
  }

  // Of kStore: which rows of the CTA are written down now, and where; false: none.
  __device__ bool find_slots() const {
    bool is_any = false;
    for_own_rows([&](int token, const HeadRow&) {
      const int64_t i = first_token + token;
      const int64_t slot = c.flags[i] != 0 ? flags_before(c.flags, i) - c.stored.first_slot : -1;
      const bool is_stored = slot >= 0 && slot < c.stored.num_slots;
      if (lane_index() == 0) shared.slots[token] = is_stored ? slot : -1;
      is_any = is_any || is_stored;
    });
    return barrier_or(kBarrier, kThreads, is_any);
  }

  __device__ void store(int64_t tile) const {
    const int64_t first_id = (c.plan.first_tile + tile) * kIds;
    for_own_rows([&](int token, const HeadRow& row) {
      const int64_t slot = shared.slots[token];
      if (slot < 0) return;
      float* z = logits(token);
      shape(row, first_id, z);
      float* to = c.stored.logits + slot * c.stored.stride;
      for (int r = lane_index(); r < kIds; r += kWarpSize) {
        const int64_t id = first_id + r;
        if (id >= ids.first && id < ids.last) to[id - ids.first] = z[r];
      }
    });
    sync();  // the logits' memory is free
  }

  // What this CTA has found, for the second kernel.
  __device__ void finish(int64_t group) const {
    for_own_rows([&](int token, const HeadRow& row) {
      const int64_t i = (first_token + token) * c.plan.num_groups + group;
      if (row.pick == Pick::kTop || row.pick == Pick::kRanks) {
        WarpKeys keys;
        keys.load(shared.lists[token], WarpKeys::kCount);
        keys.store(c.keys + i * WarpKeys::kCount);
      } else if (lane_index() == 0) {
        c.bests[i] = shared.bests[token];
      }
    });
  }
};

}  // namespace dflash
