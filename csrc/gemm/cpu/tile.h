// The main loop, a template on the vectors of an instruction set. Only files for one instruction
// set include it: everything is in an unnamed namespace, so that no copy is shared between them.
//
// V, the instruction set, has: F, a vector of kWidth floats; kMaxRows, the rows whose sums its
// registers hold beside vecs(rows) vectors of weights, and kMaxBusyRows, where more stands there;
// load, store, set1, zero, add, fma(a, b, c) = a * b + c; high and low: the even and the odd
// elements of kWidth words of pairs, as floats; prefetch; and kHasDot: dot, load_words, set1_word.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "gemm/cpu/kernels.h"

namespace dflash {
namespace {

constexpr int kBlock = GemmWeight::kBlock;

// How V's main loop has bf16 rows: as words of pairs for the dot, else every element as a float.
template <class V>
constexpr bool has_words(DType dtype) {
  return V::kHasDot && dtype == DType::kBF16;
}

struct TileArgs {
  const char* weight;  // a chunk of a packed block
  const char* rows;    // the same k of the first packed row
  int64_t row_bytes;
  int64_t num_k;
  float* sums;        // [kRows][32]
  bool is_first;      // the sums begin here
  const char* ahead;  // fetched meanwhile: a step of the loop advances by `ahead_step` bytes
  int64_t ahead_step;
};

// Chunk sums are added up.
template <class V>
void add_chunk(const TileArgs& t, typename V::F chunk, int row, int first) {
  float* sums = t.sums + row * kBlock + first;
  V::store(sums, t.is_first ? chunk : V::add(V::load(sums), chunk));
}

// Two k a step, of bf16 or fp16, for kVecs vectors of outputs at a time.
template <class V, DType kDType, int kRows, int kVecs>
void pair_tile(const TileArgs& t) {
  using F = typename V::F;
  const char* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = t.rows + r * t.row_bytes;
  const int64_t num_pairs = (t.num_k + 1) / 2;
  for (int first = 0; first < kBlock; first += kVecs * V::kWidth) {
    const auto* words = reinterpret_cast<const uint32_t*>(t.weight) + first;
    const char* ahead = t.ahead;
    F acc[kRows][kVecs];
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) acc[r][v] = V::zero();
    }
    for (int64_t i = 0; i < num_pairs; ++i, words += kBlock, ahead += t.ahead_step) {
      V::prefetch(ahead);
      V::prefetch(ahead + t.ahead_step / 2);
      if constexpr (has_words<V>(kDType)) {
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
          const auto x = V::set1_word(reinterpret_cast<const uint32_t*>(rows[r]) + i);
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            acc[r][v] = V::dot(acc[r][v], V::load_words(words + v * V::kWidth), x);
          }
        }
      } else {
        F w[kVecs];
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
          w[v] = V::template high<kDType>(words + v * V::kWidth);
        }
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
          const F x = V::set1(reinterpret_cast<const float*>(rows[r]) + 2 * i);
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            acc[r][v] = V::fma(w[v], x, acc[r][v]);
          }
        }
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
          w[v] = V::template low<kDType>(words + v * V::kWidth);
        }
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
          const F x = V::set1(reinterpret_cast<const float*>(rows[r]) + 2 * i + 1);
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            acc[r][v] = V::fma(w[v], x, acc[r][v]);
          }
        }
      }
    }
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
        add_chunk<V>(t, acc[r][v], r, first + v * V::kWidth);
      }
    }
  }
}

// One vector of outputs and eight chains over k: as many chains at once as fit beside the rows.
template <class V, int kRows>
void float_tile(const TileArgs& t) {
  using F = typename V::F;
  constexpr int kChains = 8, kAtOnce = kChains / std::min<int>(std::bit_ceil(0u + kRows), kChains);
  for (int first = 0; first < kBlock; first += V::kWidth) {
    F chains[kChains][kRows];
    for (int c = 0; c < kChains; c += kAtOnce) {
      const float* w = reinterpret_cast<const float*>(t.weight) + c * kBlock + first;
      const char* rows = t.rows + c * sizeof(float);
      F acc[kAtOnce][kRows];
      _Pragma("GCC unroll 16") for (int j = 0; j < kAtOnce; ++j) {
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) acc[j][r] = V::zero();
      }
      const auto step = [&](int j) {
        const F weight = V::load(w + j * kBlock);
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
          const F x = V::set1(reinterpret_cast<const float*>(rows + r * t.row_bytes) + j);
          acc[j][r] = V::fma(weight, x, acc[j][r]);
        }
      };
      int64_t k = c;
      for (; k + kAtOnce <= t.num_k; k += kChains) {
        _Pragma("GCC unroll 16") for (int j = 0; j < kAtOnce; ++j) step(j);
        w += kChains * kBlock, rows += kChains * sizeof(float);
      }
      _Pragma("GCC unroll 16") for (int j = 0; j < kAtOnce; ++j) {
        if (k + j < t.num_k) step(j);
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) chains[c + j][r] = acc[j][r];
      }
    }
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      const auto sum = [&](int a, int b) { return V::add(chains[a][r], chains[b][r]); };
      const F low = V::add(sum(0, 1), sum(2, 3)), high = V::add(sum(4, 5), sum(6, 7));
      add_chunk<V>(t, V::add(low, high), r, first);
    }
  }
}

template <class V, DType kDType, int kRows>
void tile(const TileArgs& t) {
  if constexpr (kDType == DType::kF32) {
    float_tile<V, kRows>(t);
  } else {
    pair_tile<V, kDType, kRows, V::vecs(kRows)>(t);
  }
}

using TileFunction = void (*)(const TileArgs&);

template <class V, DType kDType, size_t... kRowsMinus1>
constexpr std::array<TileFunction, sizeof...(kRowsMinus1)> tiles(
    std::index_sequence<kRowsMinus1...>) {
  return {tile<V, kDType, kRowsMinus1 + 1>...};
}

// Calls run(pass, num_passes, first_row, count) for passes of at most max_rows rows.
template <class Run>
void for_each_pass(int64_t num_rows, int64_t max_rows, const Run& run) {
  const int64_t passes = (num_rows + max_rows - 1) / max_rows;
  for (int64_t pass = 0, row = 0; pass < passes; ++pass) {
    const int64_t count = num_rows / passes + (pass < num_rows % passes);
    run(pass, passes, row, count);
    row += count;
  }
}

// All rows of the call meet a chunk while it is in the nearest caches. Meanwhile memory must not
// idle: a single pass fetches a little ahead of itself (of one or two rows, which wait for memory
// anyway, the hardware does that best), several passes share the work of fetching the next chunk.
template <class V, DType kDType>
void chunk_sums(const char* weight, const PackedRows& rows, int64_t first_row, int64_t num_rows,
                int64_t first_k, int64_t num_k, float* sums) {
  constexpr int kMaxRows = kDType == DType::kF32 ? V::kMaxBusyRows : V::kMaxRows;
  static constexpr auto kTiles = tiles<V, kDType>(std::make_index_sequence<kMaxRows>());
  constexpr int64_t kStepBytes = 2 * 64, kChunkBytes = kGemmChunk / 2 * kStepBytes;
  const int64_t element = has_words<V>(kDType) ? 2 : 4;
  for_each_pass(num_rows, kMaxRows, [&](int64_t pass, int64_t passes, int64_t row, int64_t count) {
    const int64_t ahead = num_rows <= 2 ? 0 : passes == 1 ? kChunkBytes / 4 : kChunkBytes;
    const int64_t ahead_step = num_rows <= 2 ? 0 : kStepBytes / passes;
    kTiles[count - 1]({weight, rows.data + (first_row + row) * rows.row_bytes + first_k * element,
                       rows.row_bytes, num_k, sums + row * kBlock, first_k == 0,
                       weight + ahead + pass * ahead_step * ((num_k + 1) / 2), ahead_step});
  });
}

template <class V, DType kDType>
__attribute__((noinline)) void plain_sums(const GemmWeight& w, int64_t block,
                                          const PackedRows& rows, int64_t first_row,
                                          int64_t num_rows, float* sums) {
  alignas(64) float packed[kGemmChunk / (kDType == DType::kF32 ? 1 : 2) * kBlock];
  for (int64_t k = 0; k < w.depth; k += kGemmChunk) {
    const int64_t num_k = std::min(kGemmChunk, w.depth - k);
    pack_block(w, block, k, num_k, packed);
    chunk_sums<V, kDType>(reinterpret_cast<const char*>(packed), rows, first_row, num_rows, k,
                          num_k, sums);
  }
}

template <class V, DType kDType>
void typed_sums(const GemmWeight& w, int64_t block, const PackedRows& rows, int64_t first_row,
                int64_t num_rows, float* sums) {
  if (!w.is_packed) return plain_sums<V, kDType>(w, block, rows, first_row, num_rows, sums);
  const char* weight = static_cast<const char*>(w.data) + block * w.block_bytes();
  constexpr int64_t kBytes = float_bytes(kDType);
  for (int64_t k = 0; k < w.depth; k += kGemmChunk) {
    const int64_t num_k = std::min(kGemmChunk, w.depth - k);
    chunk_sums<V, kDType>(weight + k * kBlock * kBytes, rows, first_row, num_rows, k, num_k, sums);
  }
}

}  // namespace
}  // namespace dflash
