// Rejection verification, second kernel: the laws that meet at each row.
//
//   grid   num_rows
//   block  kFinishBlock = 256
//   smem   44 KB
//   reads  the tiles' results and q once; logits at the ids that q lists; a row again only where its
//          filter keeps more than 64 ids
//
// Reference: python/dflash_ops/reference/rejection.py

#include <cfloat>

#include "sample/cuda/kept.cuh"
#include "verify/cuda/ids_sum.cuh"
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
  LseNode nodes[KeptStorage::kWarps];
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
__device__ bool read_dense(const RejectionLaunch& c, int64_t i, SharedStorage& shared,
                           float& total) {
  const float* q = c.p.q.at<float>(i);
  bool is_bad = false;
  const IdRange ids{0, c.p.draft_vocab_size};
  total = sum_over_ids<kFinishBlock>(shared.nodes, ids, [&](int64_t first_id) {
    float sum = 0.0f;
    for (int64_t id = first_id; id < first_id + kLseBlock && id < ids.last; ++id) {
      const float value = q[id * c.p.q.strides[1]];
      is_bad = is_bad || !(value >= 0.0f) || (value > 0.0f && target_id(c.p, id) < 0);
      sum += value;
    }
    return sum;
  });
  return !__syncthreads_or(is_bad) && is_good_total(total);
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
  float q = 0.0f;
  bool is_first = j < width && shared.ids[j] >= 0;
  for (int k = 0; is_first && k < width; ++k) {
    if (shared.ids[k] != shared.ids[j]) continue;
    is_first = k >= j;
    q += shared.q[k];
  }
  if (j < width) shared.is_first[j] = is_first;
  __syncthreads();
  int place = 0;
  for (int k = 0; k < width; ++k) {
    place += k < j && shared.is_first[k];
    row.num_listed += shared.is_first[k];
  }
  if (is_first) {
    const int64_t id = shared.ids[j];
    c.listed[i * c.list_width + place] = {id, q / sum.value(), target_prob(c, row, id)};
  }
  return is_good_total(sum.value());
}

// What the walk is told of the law that the drafts after row i came from; false: it is bad.
__device__ bool read_draft_law(const RejectionLaunch& c, int64_t i, SharedStorage& shared,
                               TargetRow& row) {
  const SamplingOptions& o = c.p.sampling;
  const int64_t b = request_of_row(o, i, c.p.options.num_rows);
  if (c.p.q && (!c.p.draft_kind || c.p.draft_kind[b] != 0)) {
    if (c.p.q_ids) return read_sparse(c, i, shared, row);
    return read_dense(c, i, shared, row.q_total);
  }
  const RowRange rows = row_range(o.cu_verify, b, c.p.options.num_rows);
  if (!c.is_chain || i + 1 >= rows.first + rows.count) return false;  // nobody asks
  const int64_t draft = c.p.tokens[i + 1];  // one-hot there
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

__global__ void __launch_bounds__(kFinishBlock, 1)  // registers instead of spills
    target_rows_kernel(const __grid_constant__ RejectionLaunch c) {
  __shared__ SharedStorage shared;
  const int64_t i = blockIdx.x;
  if (c.p.is_probe) clear_probe(c.p, i);
  const RowTask task = row_task(c.logits(), i);
  TargetRow row{.source = task.source,
                .target = {},
                .only_id = -1,
                .lse = kMinusInf,
                .q_total = 1.0f,
                .status = task.source.status | task.law.status,
                .num_listed = 0,
                .can_enter = !task.is_padded(),
                .has_good_q = false};
  if (row.can_enter) {
    const RowContext context{c.scan, task, i, id_range(c.p.options), shared.kept};
    const TileResult* tiles = c.scan.tiles + i * c.scan.num_tiles;
    const LseNode raw = merge_tiles(c.scan, [&](int64_t t) { return tiles[t].raw; });
    row.lse = lse_of(raw);
    if (raw.max > kMinusInf) {
      row.target = target_law(context, raw, shared.least);
    } else {
      row.only_id = lowest_allowed(c.p.options, task.source, context.ids);
    }
    row.has_good_q = reads_draft_law(c.p.rule) && read_draft_law(c, i, shared, row);
  }
  if (threadIdx.x == 0) c.rows[i] = row;
}

}  // namespace

cudaError_t launch_target_rows(const RejectionLaunch& c, cudaStream_t stream) {
  target_rows_kernel<<<c.p.options.num_rows, kFinishBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace dflash
