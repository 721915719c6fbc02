// Host arithmetic of the gemm ops: tasks and how they share the blocks of a weight.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm/params.h"

namespace dflash {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tasks of a product: to wake a thread costs as much as reading this many weights for one row.
constexpr int64_t gemm_tasks(const GemmWeight& w, int64_t num_rows, int64_t num_threads) {
  constexpr int64_t kWeightsPerTask = 1 << 16, kReadCost = 8;  // reading costs as much as 8 rows
  const double work = static_cast<double>(w.num_rows) * static_cast<double>(w.depth) *
                      static_cast<double>(num_rows + kReadCost) / (kReadCost * kWeightsPerTask);
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(work, 1e9)), 1, num_threads);
}

// Blocks that a task takes next of those that are left: large pieces first, as one stream of memory
// is read faster than many, small ones at the end, so that tasks end together.
constexpr int64_t next_blocks(int64_t left, int64_t num_tasks) {
  return std::max<int64_t>(1, left / (3 * num_tasks));
}

// Blocks that all rows meet before the next ones are read, so that they stay in the second cache.
constexpr int64_t blocks_at_once(int64_t block_bytes) {
  constexpr int64_t kCacheBytes = 256 << 10;
  return std::max<int64_t>(1, kCacheBytes / std::max<int64_t>(block_bytes, 1));
}

// Rows per task of an op that passes over rows: elements as cheap as these, enough to be worth it.
constexpr int64_t row_grain(int64_t depth) {
  constexpr int64_t kElementsPerTask = 1 << 14;
  return 1 + kElementsPerTask / (depth + 1);
}

}  // namespace dflash
