// VocabSum by a whole CTA of kBlock threads: 64 ids each at a time.
#pragma once

#include "sample/cuda/row.cuh"
#include "verify/rejection.h"

namespace dflash {

// sum_of(first_id): of the terms of ids first_id .. first_id + 63, in ascending order. Of those
// only first .. last - 1 are asked for: it is not called where none is. Every thread gets the sum.
template <int kBlock, class F>
static __device__ float sum_over_ids(LseNode (&nodes)[kBlock / kWarpSize], const IdRange& ids,
                                     F sum_of) {
  constexpr int kWarps = kBlock / kWarpSize;
  constexpr int64_t kIds = int64_t{kLseBlock} * kBlock;
  LseCarry carry;
  for (int64_t part = ids.first / kIds; part * kIds < ids.last; ++part) {
    const int64_t first_id = part * kIds + int64_t{kLseBlock} * threadIdx.x;
    const bool is_here = first_id < ids.last && first_id + kLseBlock > ids.first;
    const LseNode node = merge_lse_of_warp(sum_node(is_here ? sum_of(first_id) : 0.0f));
    __syncthreads();  // the nodes of the part before have been read
    if (lane_index() == 0) nodes[warp_index()] = node;
    __syncthreads();
    LseNode level[kWarps];
    for (int w = 0; w < kWarps; ++w) level[w] = nodes[w];
    _Pragma("unroll") for (int width = 1; width < kWarps; width *= 2) {
      for (int w = 0; w < kWarps; w += 2 * width) {
        level[w] = merge_lse(level[w], level[w + width]);
      }
    }
    carry.add(part, level[0]);
  }
  return carry.total().sum;
}

}  // namespace dflash
