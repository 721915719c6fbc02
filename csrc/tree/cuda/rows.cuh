// Rows of a packed call that no request has: what is written there is not for its CTA to know.
#pragma once

#include <cstdint>

#include "common/views.h"

namespace dflash {

// By a CTA of kBlock threads: calls write(row) for those of rows begin .. begin + kBlock - 1 that
// no request has.
template <int kBlock, class F>
static __device__ void for_rows_of_no_request(const IndexView& cu_rows, int64_t num_requests,
                                              int64_t num_rows, int64_t begin, F write) {
  __shared__ bool is_taken[kBlock];
  is_taken[threadIdx.x] = false;
  __syncthreads();
  for (int64_t b = threadIdx.x; b < num_requests; b += kBlock) {
    const RowRange rows = row_range(cu_rows, b, num_rows);
    const int64_t first = rows.first > begin ? rows.first : begin;
    const int64_t last = rows.first + rows.count;
    for (int64_t row = first; row < last && row < begin + kBlock; ++row) {
      is_taken[row - begin] = true;
    }
  }
  __syncthreads();
  const int64_t row = begin + threadIdx.x;
  if (row < num_rows && !is_taken[threadIdx.x]) write(row);
}

}  // namespace dflash
