// Host arithmetic of the attention ops on CUDA: sizes -> grids.
#pragma once

#include <cstdint>

namespace dflash {

inline constexpr int kMergeBlock = 256;

// Threads with 8 elements each that hold an output of `v_dim`: a power of two, 32 at most.
constexpr int merge_threads_per_pair(int64_t v_dim) {
  int threads = 1;
  while (threads < 32 && 8 * threads < v_dim) threads *= 2;
  return threads;
}

constexpr int64_t merge_ctas(int64_t num_pairs, int threads_per_pair) {
  const int64_t pairs_per_cta = kMergeBlock / threads_per_pair;
  return (num_pairs + pairs_per_cta - 1) / pairs_per_cta;
}

}  // namespace dflash
