// The main loop over bf16 weights by a unit that multiplies tiles: 16 rows of 64 bytes. A device
// class of its own: an instruction adds 32 products to a sum, the even k's and the odd k's apart.
//
// Tiles, the unit, has: configure(rows, rows_below): tiles of x and of sums have so many rows,
// those below likewise; zero<t>(); load<t>(p, stride); store<t>(p, stride); dot<sum, x, weight>().
#pragma once

#include <cstring>

#include "gemm/cpu/tile.h"

namespace dflash {
namespace {

constexpr int kTileRowBytes = 64;  // 32 k of a row of x; 16 sums
constexpr int kTileK = 32, kTileMaxRows = 16;
constexpr int64_t kWeightRowBytes = kBlock * 4;  // a pair of k for a block's outputs

// Sums are tiles 0 .. 3: of 16 rows, then those below, 16 outputs each; x has 4 and 5, a weight 6
// and 7.
template <class Tiles, bool kHasBelow>
void multiply_tiles(const char* weight, const char* x, int64_t row_bytes) {
  Tiles::template load<6>(weight, kWeightRowBytes);
  Tiles::template load<7>(weight + kTileRowBytes, kWeightRowBytes);
  Tiles::template load<4>(x, row_bytes);
  Tiles::template dot<0, 4, 6>();
  Tiles::template dot<1, 4, 7>();
  if constexpr (kHasBelow) {
    Tiles::template load<5>(x + kTileMaxRows * row_bytes, row_bytes);
    Tiles::template dot<2, 5, 6>();
    Tiles::template dot<3, 5, 7>();
  }
}

// What is left of k where it is no multiple of 32, followed by zeros.
struct TileTail {
  alignas(64) char weight[kTileK / 2 * kWeightRowBytes] = {};
  alignas(64) char x[2 * kTileMaxRows * kTileRowBytes] = {};

  TileTail(const char* from_weight, const char* from_x, int64_t row_bytes, int64_t num_rows,
           int64_t num_k) {
    const int64_t pairs = (num_k + 1) / 2;
    std::memcpy(weight, from_weight, pairs * kWeightRowBytes);
    for (int64_t r = 0; r < num_rows; ++r) {
      std::memcpy(x + r * kTileRowBytes, from_x + r * row_bytes, pairs * 4);
    }
  }
};

// to[r][32] = the products of a chunk, for up to 32 rows; tiles are configured for them.
template <class Tiles, bool kHasBelow>
void tile_chunk(const char* weight, const char* x, int64_t row_bytes, int64_t num_rows,
                int64_t num_k, float* to) {
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  if constexpr (kHasBelow) {
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  }
  constexpr int64_t kStepBytes = kTileK / 2 * kWeightRowBytes;
  for (; num_k >= kTileK; num_k -= kTileK, weight += kStepBytes, x += kTileRowBytes) {
    multiply_tiles<Tiles, kHasBelow>(weight, x, row_bytes);
  }
  if (num_k > 0) {
    const TileTail tail(weight, x, row_bytes, num_rows, num_k);
    multiply_tiles<Tiles, kHasBelow>(tail.weight, tail.x, kTileRowBytes);
  }
  constexpr int kHalf = kBlock / 2, kStride = kBlock * 4;
  Tiles::template store<0>(to, kStride);
  Tiles::template store<1>(to + kHalf, kStride);
  if constexpr (kHasBelow) {
    float* below = to + kTileMaxRows * kBlock;
    Tiles::template store<2>(below, kStride);
    Tiles::template store<3>(below + kHalf, kStride);
  }
}

// Like GemmKernels::block_sums, of a bf16 weight. chunk(k, num_k): the packed block from k on.
template <class Tiles, class Chunk>
void tile_sums(const Chunk& chunk, int64_t depth, const PackedRows& rows, int64_t first_row,
               int64_t num_rows, float* sums) {
  constexpr int64_t kMaxRows = 2 * kTileMaxRows;
  alignas(64) float products[kMaxRows * kBlock];
  for_each_pass(num_rows, kMaxRows, [&](int64_t, int64_t, int64_t row, int64_t count) {
    const int64_t below = std::max<int64_t>(0, count - kTileMaxRows);
    Tiles::configure(static_cast<int>(count - below), static_cast<int>(below));
    for (int64_t k = 0; k < depth; k += kGemmChunk) {
      const int64_t num_k = std::min(kGemmChunk, depth - k);
      const char* x = rows.data + (first_row + row) * rows.row_bytes + k * 2;
      float* total = sums + row * kBlock;
      float* to = k == 0 ? total : products;
      if (below > 0) {
        tile_chunk<Tiles, true>(chunk(k, num_k), x, rows.row_bytes, count, num_k, to);
      } else {
        tile_chunk<Tiles, false>(chunk(k, num_k), x, rows.row_bytes, count, num_k, to);
      }
      if (k == 0) continue;
      for (int64_t i = 0; i < count * kBlock; ++i) total[i] += products[i];
    }
  });
  Tiles::release();
}

}  // namespace
}  // namespace dflash
