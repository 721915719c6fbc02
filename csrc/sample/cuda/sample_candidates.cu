// sample_candidates: the token of a row from its best candidates, if they tell it.
//
//   grid   num_rows                  one row per CTA
//   block  kCandidatesBlock          one warp
//   smem   12 KB
//   reads  the candidates once
//
// Reference: python/dflash_ops/reference/sample.py

#include "sample/cuda/candidates.cuh"
#include "sample/cuda/launch.h"
#include "sample/cuda/plan.h"
#include "sample/plan.h"

namespace dflash {
namespace {

// How many candidates the row's token is drawn from; -1: they do not tell.
__device__ int64_t num_kept(const RowLaw& law, const Candidates& list, const uint64_t* keys,
                            float* terms, float lse) {
  if (law.is_greedy) return 1;
  if (!law.is_filtered()) return list.is_complete ? list.count : -1;
  if (needs_tempered(law)) return -1;  // lse is that of temperature 1
  const float largest = key_value(keys[0]) * law.inv_temperature;
  for (int64_t k = lane_index(); k < list.count; k += kWarpSize) {
    terms[k] = exp_f32(key_value(keys[k]) * law.inv_temperature - largest);
  }
  __syncwarp();
  const float total = law.filter.needs_lse() ? exp_f32(lse - largest) : 0.0f;
  const auto term_of = [&](int64_t k) { return terms[k]; };
  return kept_of_terms(law.filter, term_of, list.count, list.is_complete, total);
}

__global__ void __launch_bounds__(kCandidatesBlock)
    sample_candidates_kernel(const __grid_constant__ SampleCandidatesParams p) {
  __shared__ uint64_t keys[kMaxCandidates];
  __shared__ float terms[kMaxCandidates];
  const int64_t i = blockIdx.x;
  const RowLaw law = row_law(p.sampling, i, p.num_rows, p.vocab_size);
  int32_t status = law.status;
  int64_t id = -1;
  float logprob = 0.0f;
  bool is_covered = false;
  if (!law.is_padded) {
    const Candidates list = read_candidates({p.values, p.cand_ids, i, p.vocab_size}, keys);
    status |= list.status;
    const float lse = *p.lse.at<float>(i);
    const int64_t kept = list.count > 0 ? num_kept(law, list, keys, terms, lse) : -1;
    if (kept > 0) {
      const Best best = law.is_greedy ? Best{0.0f, key_value(keys[0]), key_id(keys[0])}
                                      : draw_of_warp(law, keys, kept);
      id = best.id;
      logprob = best.value - lse;
      is_covered = true;
    } else if (list.lowest_id >= 0) {
      id = list.lowest_id;
      logprob = kMinusInf;
      status |= kNoFiniteLogit;
      is_covered = true;
    }
  }
  if (lane_index() != 0) return;
  p.ids.set(i, id);
  *p.logprobs.at<float>(i) = logprob;
  p.covered[i * p.covered_stride] = is_covered;
  p.status.add(i, status);
}

}  // namespace

cudaError_t launch_sample_candidates(const SampleCandidatesParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  sample_candidates_kernel<<<p.num_rows, kCandidatesBlock, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
