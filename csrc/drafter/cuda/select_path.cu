// select_path: DFlash 2's selector walks the slots of a block, each choice conditional on the last.
//
//   grid   path_ctas                 one warp per request
//   block  kPathsPerCta * 32
//   smem   none
//   reads  per slot one row of `predecessor` and K of `successor`, once
//
// The lanes are the 32 chains of a dot product, kBatch candidates at a time, so that their rows are
// on their way together. Candidate k belongs to lane k % 32; its score waits in the slot's row of
// q.
//
// Reference: python/dflash_ops/reference/drafter.py

#include <cfloat>

#include "common/dispatch.h"
#include "common/expf.h"
#include "common/noise.h"
#include "device/warp.cuh"
#include "drafter/cuda/launch.h"
#include "drafter/plan.h"

namespace dflash {
namespace {

constexpr float kNone = -__builtin_inff();

// A candidate in the order of choice: higher rank, then lower id, then lower number.
struct Choice {
  float rank = kNone;
  int64_t id = 0;
  int64_t k = -1;  // -1: no candidate

  __device__ void offer(const Choice& other) {
    if (other.k < 0) return;
    const bool is_first =
        k < 0 || other.rank > rank ||
        (other.rank == rank && (other.id < id || (other.id == id && other.k < k)));
    if (is_first) *this = other;
  }
};

template <class Book>
struct Walk {
  static constexpr int kBatch = 8;

  const SelectPathParams& p;
  int64_t b;

  __device__ float& score_of(int64_t slot, int64_t k) const {
    return p.q.at<float>(b)[slot * p.q.strides[1] + k * p.q.strides[2]];
  }
  __device__ float hidden(int64_t slot, int64_t r) const {
    float value = 0.0f;
    (void)with_dtype<float, BF16, F16>(p.hidden.dtype, [&]<class T>(std::type_identity<T>) {
      value = to_float(p.hidden.at<T>(b)[slot * p.hidden.strides[1] + r]);
    });
    return value;
  }
  __device__ bool is_candidate(int64_t id) const { return id >= 0 && id < p.vocab_size; }

  // Scores slot `slot`, whose predecessor is token `from`.
  __device__ void score(int64_t slot, int64_t from, int32_t& bits) const {
    const bool has_edge = is_candidate(from);
    if (!has_edge) bits |= kBadDraftId;
    const Book* predecessor = p.predecessor.at<Book>(has_edge ? from : 0);
    const float* values = p.values.at<float>(b) + slot * p.values.strides[1];
    for (int64_t first = 0; first < p.num_candidates; first += kBatch) {
      float sums[kBatch] = {};
      const Book* successors[kBatch] = {};
      _Pragma("unroll") for (int i = 0; i < kBatch; ++i) {
        const int64_t id = first + i < p.num_candidates ? p.id(b, slot, first + i) : -1;
        if (id >= p.vocab_size) bits |= kBadDraftId;
        if (has_edge && is_candidate(id)) successors[i] = p.successor.at<Book>(id);
      }
      for (int64_t r = lane_index(); has_edge && r < p.rank; r += kWarpSize) {
        const float factor = to_float(predecessor[r]) * hidden(slot, r);
        _Pragma("unroll") for (int i = 0; i < kBatch; ++i) {
          if (successors[i] != nullptr) sums[i] += factor * to_float(successors[i][r]);
        }
      }
      _Pragma("unroll") for (int i = 0; i < kBatch; ++i) {
        for (int width = kWarpSize / 2; width > 0; width /= 2) {
          sums[i] += __shfl_xor_sync(kFullMask, sums[i], width);
        }
        const int64_t k = first + i;
        if (k >= p.num_candidates || k % kWarpSize != lane_index()) continue;
        float score = values[k * p.values.strides[2]];
        if (has_edge) score += sums[i];
        score = score > FLT_MAX ? FLT_MAX : score;
        const bool is_usable = score == score && is_candidate(p.id(b, slot, k));
        score_of(slot, k) = is_usable ? score : kNone;
      }
    }
  }

  // The candidate with the highest rank_of(id, score).
  template <class F>
  __device__ Choice best(int64_t slot, F rank_of) const {
    Choice chosen;
    for (int64_t k = lane_index(); k < p.num_candidates; k += kWarpSize) {
      const int64_t id = p.id(b, slot, k);
      if (is_candidate(id)) chosen.offer({rank_of(id, score_of(slot, k)), id, k});
    }
    for (int width = kWarpSize / 2; width > 0; width /= 2) {
      chosen.offer({__shfl_xor_sync(kFullMask, chosen.rank, width),
                    __shfl_xor_sync(kFullMask, chosen.id, width),
                    __shfl_xor_sync(kFullMask, chosen.k, width)});
    }
    return chosen;
  }

  __device__ void write_one_hot(int64_t slot, int64_t one_hot) const {
    for (int64_t k = lane_index(); k < p.num_candidates; k += kWarpSize) {
      score_of(slot, k) = k == one_hot ? 1.0f : 0.0f;
    }
  }

  // Turns the slot's scores into probabilities; the sum goes through the candidates in order.
  __device__ void write_softmax(int64_t slot, float largest, float inverse_temperature) const {
    float sum = 0.0f;
    for (int64_t first = 0; first < p.num_candidates; first += kWarpSize) {
      const int64_t k = first + lane_index();
      float weight = 0.0f;
      if (k < p.num_candidates) {
        weight = exp_f32((score_of(slot, k) - largest) * inverse_temperature);
        score_of(slot, k) = weight;
      }
      for (int lane = 0; lane < kWarpSize && first + lane < p.num_candidates; ++lane) {
        sum += __shfl_sync(kFullMask, weight, lane);
      }
    }
    for (int64_t k = lane_index(); k < p.num_candidates; k += kWarpSize) score_of(slot, k) /= sum;
  }

  // Returns how many slots it filled.
  __device__ int64_t run(int64_t state_row, int64_t num_slots, int32_t& bits) const {
    const float temperature =
        p.temperature != nullptr ? p.temperature[state_row * p.temperature_stride] : 0.0f;
    const bool is_greedy = !(temperature >= 1e-5f);
    const float inverse = is_greedy ? 0.0f : 1.0f / temperature;
    int64_t token = p.anchors[b];
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      score(slot, token, bits);
      const Choice highest = best(slot, [](int64_t, float score) { return score; });
      if (highest.k < 0) return slot;
      if (highest.rank == kNone) bits |= kNoFiniteLogit;
      Choice chosen = highest;
      if (is_greedy || highest.rank == kNone) {
        write_one_hot(slot, chosen.k);
      } else {
        const int64_t anchor_idx = p.ctx_lens[state_row], token_idx = anchor_idx + 1 + slot;
        const int64_t seed = p.seeds[state_row];
        const NoiseKey key = p.is_coupled
                                 ? target_noise(seed, token_idx)
                                 : cycle_noise(kDraftStream, seed, token_idx, anchor_idx, slot);
        chosen = best(slot, [&](int64_t id, float score) {
          return score > kNone ? fmaf(score, inverse, gumbel_at(key, id)) : kNone;
        });
        write_softmax(slot, highest.rank, inverse);
      }
      token = chosen.id;
      if (lane_index() == 0) p.tokens.set(b, slot, token);
    }
    return num_slots;
  }
};

template <class Book>
__global__ void select_path_kernel(const __grid_constant__ SelectPathParams p) {
  const int64_t b = warp_of_grid();
  if (b >= p.num_requests) return;
  int32_t bits = p.requests.is_bad(b) ? kOutOfRange : 0;
  const int64_t state_row = p.requests[b];
  int64_t num_slots = p.num_drafts ? p.num_drafts[b] : p.num_slots;
  if (state_row < 0 || num_slots < 0) num_slots = 0;
  if (num_slots > p.num_slots) {
    bits |= kBoundTooSmall;
    num_slots = p.num_slots;
  }
  const Walk<Book> walk{p, b};
  if (num_slots > 0) num_slots = walk.run(state_row, num_slots, bits);
  for (int64_t slot = num_slots; slot < p.num_slots; ++slot) {
    if (lane_index() == 0) p.tokens.set(b, slot, -1);
    walk.write_one_hot(slot, -1);
  }
  if (lane_index() == 0) p.status.add(b, bits);
}

}  // namespace

cudaError_t launch_select_path(const SelectPathParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  const int64_t num_ctas = path_ctas(p.num_requests);
  (void)with_dtype<float, BF16, F16>(p.predecessor.dtype, [&]<class B>(std::type_identity<B>) {
    select_path_kernel<B><<<num_ctas, kPathsPerCta * kWarpSize, 0, stream>>>(p);
  });
  return cudaGetLastError();
}

}  // namespace dflash
