// A row's best candidates, as data that may be bad: the twin of sample/cpu/candidates.h.
#pragma once

#include <cfloat>

#include "sample/cuda/row.cuh"

namespace dflash {

struct CandidateList {
  const ArrayView<2>& values;  // [Tv, K]
  const IndexTable& ids;       // [Tv, K]
  int64_t row;
  int64_t vocab_size;

  enum End : int { kGoesOn, kAbsent, kBadId, kNotFinite, kOutOfOrder };

  __device__ float value(int64_t j) const { return values.at<float>(row)[j * values.strides[1]]; }
  __device__ uint64_t key(int64_t j) const {
    const float z = value(j);
    return candidate_key((z > FLT_MAX ? FLT_MAX : z) + 0.0f, ids(row, j));
  }
  __device__ End end_at(int64_t j) const {
    const int64_t id = ids(row, j);
    if (id == -1) return kAbsent;
    if (id < 0 || id >= vocab_size) return kBadId;
    if (!(value(j) > kMinusInf)) return kNotFinite;
    return j > 0 && key(j) >= key(j - 1) ? kOutOfOrder : kGoesOn;
  }
};

struct Candidates {
  int64_t count;
  bool is_complete;   // the row has no other finite logit
  int64_t lowest_id;  // of a row without a finite logit; else -1
  int32_t status;
};

// By one warp. A list ends at the first absent id. One that is not in order is not believed from
// there on.
static __device__ Candidates read_candidates(const CandidateList& from, uint64_t* keys) {
  const int64_t num_candidates = from.ids.num_cols;
  Candidates list{num_candidates, false, -1, 0};
  for (int64_t base = 0; base < num_candidates; base += kWarpSize) {
    const int64_t j = base + lane_index();
    const CandidateList::End end = j < num_candidates ? from.end_at(j) : CandidateList::kGoesOn;
    const int lane = first_lane(end != CandidateList::kGoesOn);
    if (lane_index() < lane && j < num_candidates) keys[j] = from.key(j);
    if (lane == kWarpSize) continue;
    const int why = __shfl_sync(kFullMask, static_cast<int>(end), lane);
    list.count = base + lane;
    list.is_complete = why == CandidateList::kAbsent || why == CandidateList::kNotFinite;
    if (why == CandidateList::kNotFinite && list.count == 0) list.lowest_id = from.ids(from.row, 0);
    if (why == CandidateList::kBadId) list.status = kOutOfRange;
    break;
  }
  __syncwarp();
  return list;
}

}  // namespace dflash
