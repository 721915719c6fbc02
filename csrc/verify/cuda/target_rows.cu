// Rejection verification, second kernel: the laws that meet at each row.
//
//   grid   num_rows
//   block  kFinishBlock = 256
//   smem   44 KB
//   reads  the tiles' results, or the record, and a sparse q once; logits at the ids that q
//          lists; a row again only where its filter keeps more than 64 ids
//
// Reference: python/dflash_ops/reference/rejection.py

#include "sample/cuda/candidates.cuh"
#include "sample/cuda/kept.cuh"
#include "verify/cuda/rejection.cuh"
#include "verify/cuda/stages.h"

namespace dflash {
namespace {

constexpr int kMaxListed = static_cast<int>(kMaxSparseQ);

struct SharedStorage {
  KeptStorage kept;
  uint64_t least;
  int64_t ids[kMaxListed];  // -1: absent
  float q[kMaxListed];
  bool is_first[kMaxListed];  // of those with its id
  Candidates top;             // of a record
};

// The target's law of a row with a finite logit. raw: the row's log-sum-exp as a node.
__device__ TargetLaw target_law(const RowContext& row, const LseNode& raw, uint64_t& shared_least) {
  const RowLaw& law = row.task.law;
  const TileResult* tiles = row.c.tiles + row.i * row.c.num_tiles;
  if (law.is_greedy) {
    Best best;
    for (int64_t t = lane_index(); t < row.c.num_tiles; t += kWarpSize) best.offer(tiles[t].best);
    best = best_of_warp(best);
    return {1.0f, candidate_key(best.value, best.id), best.value, 1.0f};
  }
  float tempered_lse = lse_of(raw);
  if (row.c.needs_tempered(law)) {
    tempered_lse = lse_of(merge_tiles(row.c, [&](int64_t t) { return tiles[t].tempered; }));
  }
  if (!law.is_filtered()) return {law.inv_temperature, 0, tempered_lse, 1.0f};
  const float sum = for_each_kept(row, tempered_lse, [&](int64_t num_kept) {
    if (threadIdx.x == 0 && num_kept > 0) shared_least = row.shared.keys[num_kept - 1];
  });
  __syncthreads();
  return {law.inv_temperature, shared_least, raw.max * law.inv_temperature, sum};
}

__device__ bool is_good_total(float total) { return total > 0.0f && total <= FLT_MAX; }

// The sum of a dense q; false: it is bad.
__device__ bool read_dense(const RejectionLaunch& c, int64_t i, float& total) {
  const float* sums = c.draft_sums + i * c.num_draft_tiles;
  total = merge_tiles(0, c.num_draft_tiles, [&](int64_t t) { return sum_node(sums[t]); }).sum;
  return is_good_total(total);
}

// Where id threadIdx.x of shared.ids stands among those that are there, duplicates left out.
struct Place {
  bool is_first;  // of those with its id
  int before;
  int count;  // of all
};
__device__ Place place_of(SharedStorage& shared, int width) {
  const int j = static_cast<int>(threadIdx.x);
  Place place{j < width && shared.ids[j] >= 0, 0, 0};
  for (int k = 0; place.is_first && k < j; ++k) place.is_first = shared.ids[k] != shared.ids[j];
  if (j < width) shared.is_first[j] = place.is_first;
  __syncthreads();
  for (int k = 0; k < width; ++k) {
    place.before += k < j && shared.is_first[k];
    place.count += shared.is_first[k];
  }
  return place;
}

// A sparse q without duplicates, normalised, into c.listed; false: it is bad. The target's part of
// `row` is there already.
__device__ bool read_sparse(const RejectionLaunch& c, int64_t i, SharedStorage& shared,
                            TargetRow& row) {
  const int j = static_cast<int>(threadIdx.x), width = static_cast<int>(c.p.q_ids.num_cols);
  bool is_bad = false;
  if (j < width) {
    const int64_t draft_id = c.p.q_ids(i, j), id = target_id(c.p, draft_id);
    const float value = c.p.q.at<float>(i)[j * c.p.q.strides[1]];
    const bool is_absent = draft_id == -1;
    is_bad = !is_absent && (!(value >= 0.0f) || id < 0);
    shared.ids[j] = id;
    shared.q[j] = is_absent ? 0.0f : value;
  }
  if (__syncthreads_or(is_bad)) return false;

  OrderedSum sum;
  for (int k = 0; k < width; ++k) {
    if (shared.ids[k] >= 0) sum.add(shared.q[k]);
  }
  const Place place = place_of(shared, width);
  float q = 0.0f;
  for (int k = j; place.is_first && k < width; ++k) {
    if (shared.ids[k] == shared.ids[j]) q += shared.q[k];
  }
  row.num_listed = place.count;
  if (place.is_first) {
    const int64_t id = shared.ids[j];
    c.listed[i * c.list_width + place.before] = {id, q / sum.value(), target_prob(c, row, id)};
  }
  return is_good_total(sum.value());
}

// What the walk is told of the law that the drafts after row i came from; false: it is bad.
__device__ bool read_draft_law(const RejectionLaunch& c, int64_t i, SharedStorage& shared,
                               TargetRow& row) {
  const SamplingOptions& o = c.p.sampling;
  const int64_t b = request_of_row(o, i, c.p.options.num_rows);
  if (is_sampled(c.p, b)) {
    if (c.p.q_ids) return read_sparse(c, i, shared, row);
    return read_dense(c, i, row.q_total);
  }
  const RowRange rows = row_range(o.cu_verify, b, c.p.options.num_rows);
  if (!c.is_chain || i + 1 >= rows.first + rows.count) return false;  // nobody asks
  const int64_t draft = c.p.tokens[i + 1];                            // one-hot there
  row.num_listed = 1;
  if (threadIdx.x == 0) c.listed[i * c.list_width] = {draft, 1.0f, target_prob(c, row, draft)};
  return true;
}

__device__ void clear_probe(const RejectionParams& p, int64_t i) {
  if (threadIdx.x == 0) {
    *p.accept_probs.at<float>(i) = 0.0f;
    *p.coins.at<float>(i) = 0.0f;
  }
  if (threadIdx.x < 8) p.counters[i * 8 + threadIdx.x] = -1;
  for (int64_t id = threadIdx.x; id < p.options.vocab_size; id += kFinishBlock) {
    p.weights.at<float>(i)[id * p.weights.strides[1]] = 0.0f;
  }
}

__device__ void read_logits(const RejectionLaunch& c, const RowTask& task, int64_t i,
                            SharedStorage& shared, TargetRow& row) {
  const RowContext context{c.scan, task, i, id_range(c.p.options), shared.kept};
  const TileResult* tiles = c.scan.tiles + i * c.scan.num_tiles;
  const LseNode raw = merge_tiles(c.scan, [&](int64_t t) { return tiles[t].raw; });
  row.lse = lse_of(raw);
  if (raw.max > kMinusInf) {
    row.target = target_law(context, raw, shared.least);
  } else {
    row.only_id = lowest_allowed(c.p.options, task.source, context.ids);
  }
}

// What lm_head_verify said of the row: the twin of csrc/verify/cpu/record_row.cpp.
__device__ void read_record(const RejectionLaunch& c, const RowLaw& law, int64_t i,
                            SharedStorage& shared, TargetRow& row) {
  const HeadRecord& r = c.p.record;
  const int j = static_cast<int>(threadIdx.x);
  const uint64_t* keys = shared.kept.keys;
  Recorded* recorded = c.recorded + i * kMaxListed;
  if (warp_index() == 0) {
    const CandidateList list{r.top_values, r.top_ids, i, c.p.options.vocab_size};
    const Candidates top = read_candidates(list, shared.kept.keys);
    if (lane_index() == 0) shared.top = top;
  }
  __syncthreads();
  const Candidates top = shared.top;
  const float tempered_lse = *r.tempered_lse.at<float>(i);
  row.lse = *r.lse.at<float>(i);
  row.target = {law.inv_temperature, 0, tempered_lse, 1.0f};
  const auto list_keys = [&](int64_t count) {
    if (j < count) recorded[j] = {key_id(keys[j]), key_value(keys[j])};
    row.num_recorded = static_cast<int32_t>(count);
  };
  const auto read_rest = [&] {
    const int64_t id = r.rest_ids[i];
    const float key = *r.rest_keys.at<float>(i);
    if (id < 0 || id >= c.p.options.vocab_size || !(key > kMinusInf)) return;
    row.rest = {key, *r.rest_values.at<float>(i), id};
  };
  bool is_covered = true, is_whole = false;
  if (top.lowest_id >= 0) {
    row.only_id = top.lowest_id;
  } else if (law.is_greedy) {
    list_keys(top.count > 0 ? 1 : 0);
    if (top.count > 0) row.target = {1.0f, keys[0], key_value(keys[0]), 1.0f};
    is_whole = true;
  } else if (law.is_filtered()) {
    const bool says_covered = r.covered[i * r.covered_stride] && top.count > 0;
    const int64_t num_kept = says_covered ? kept_of(law.filter, keys, top.count, top.is_complete,
                                                    law.inv_temperature, tempered_lse)
                                          : -1;
    is_covered = is_whole = num_kept > 0;
    if (is_covered) {
      list_keys(num_kept);
      const float max = key_value(keys[0]) * law.inv_temperature;
      OrderedSum sum;
      for (int64_t k = 0; k < num_kept; ++k) {
        sum.add(exp_f32(key_value(keys[k]) * law.inv_temperature - max));
      }
      row.target = {law.inv_temperature, keys[num_kept - 1], max, sum.value()};
    } else {
      read_rest();
    }
  } else {
    const int width = static_cast<int>(r.ids.num_cols);
    if (j < width) {
      const int64_t id = r.ids(i, j);
      shared.ids[j] = id < c.p.options.vocab_size ? id : -1;
    }
    __syncthreads();
    const Place place = place_of(shared, width);
    if (place.is_first) {
      const float value = r.values.at<float>(i)[j * r.values.strides[1]];
      recorded[place.before] = {shared.ids[j], value == value ? value : kMinusInf};
    }
    row.num_recorded = place.count;
    read_rest();
    is_whole = row.rest.id < 0;
  }
  __syncthreads();  // what is recorded is there
  const bool is_finite = j < row.num_recorded && recorded[j].value > kMinusInf;
  row.can_draw = __syncthreads_or(is_finite) || row.only_id >= 0 || row.rest.id >= 0;
  row.missing = !is_covered ? kBoundTooSmall : is_whole || row.only_id >= 0 ? 0 : kBadQ;
}

// A draft needs no more than is recorded, if it and all that q lists are. By the whole CTA.
__device__ bool is_told(const RejectionLaunch& c, int64_t i, const TargetRow& row) {
  const int j = static_cast<int>(threadIdx.x);
  if (j > row.num_listed || i + 1 >= c.p.options.num_rows) return true;
  const int64_t id = j < row.num_listed ? c.listed[i * c.list_width + j].id : c.p.tokens[i + 1];
  const Recorded* recorded = recorded_of(c, i);
  for (int k = 0; k < row.num_recorded; ++k) {
    if (recorded[k].id == id) return true;
  }
  return false;
}

__global__ void __launch_bounds__(kFinishBlock, 1)  // registers instead of spills
    target_rows_kernel(const __grid_constant__ RejectionLaunch c) {
  __shared__ SharedStorage shared;
  const int64_t i = blockIdx.x;
  if (c.p.is_probe) clear_probe(c.p, i);
  const RowTask task = row_task(c.logits(), i);
  TargetRow row{.row = i,
                .source = task.source,
                .target = {},
                .only_id = -1,
                .lse = kMinusInf,
                .q_total = 1.0f,
                .status = task.source.status | task.law.status,
                .num_listed = 0,
                .rest = {kMinusInf, kMinusInf, -1},
                .num_recorded = 0,
                .missing = 0,
                .can_draw = true,
                .can_enter = !task.is_padded(),
                .has_good_q = false};
  if (row.can_enter) {
    if (c.recorded == nullptr) {
      read_logits(c, task, i, shared, row);
    } else {
      read_record(c, task.law, i, shared, row);
    }
    row.has_good_q = reads_draft_law(c.p.rule) && read_draft_law(c, i, shared, row);
    __syncthreads();  // the list is there
    const bool is_short = row.missing == kBadQ && !is_told(c, i, row);
    if (!__syncthreads_or(is_short) && row.missing == kBadQ) row.missing = 0;
  }
  if (threadIdx.x == 0) c.rows[i] = row;
}

}  // namespace

cudaError_t launch_target_rows(const RejectionLaunch& c, cudaStream_t stream) {
  target_rows_kernel<<<c.p.options.num_rows, kFinishBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace dflash
