// How CUDA kernels lay a packed weight out, in a buffer of the size that GemmWeight gives: blocks
// of 16 rows, one after the other, each cut along k into chunks of 64 bytes a row. A chunk is 16
// rows one under the other, 1 KB that a warp reads in two coalesced accesses of 16 bytes a lane;
// the last chunk may be narrower. A pair's block has 8 gate rows over their 8 up rows, so that the
// lane that holds a sum of the one holds the sum of the other.
#pragma once

#include "gemm/params.h"

namespace dflash {

inline constexpr int kTileRows = 16;       // rows of a block: the m of mma
inline constexpr int kChunkRowBytes = 64;  // 4 lanes of 16 bytes

// Where the 16-byte unit `unit` of a whole chunk's row stands, and which stands there.
constexpr int turned_unit(int row, int unit) { return unit ^ row / 2 % 4; }

// The rows of a weight in blocks of 16.
struct RowBlocks {
  int64_t num_rows;
  bool is_pair;

  constexpr explicit RowBlocks(const GemmWeight& w) : num_rows(w.num_rows), is_pair(w.is_pair) {}

  // The weight's own row that stands at `row` of a block; -1: padding.
  constexpr int64_t row_at(int64_t block, int row) const {
    constexpr int kHalf = kTileRows / 2;
    if (!is_pair) {
      const int64_t i = block * kTileRows + row;
      return i < num_rows ? i : -1;
    }
    const int64_t half = num_rows / 2, i = block * kHalf + row % kHalf;
    return i < half ? i + (row < kHalf ? 0 : half) : -1;
  }

  struct Place {
    int64_t block;
    int row;
  };
  // Where it stands.
  constexpr Place place_of_row(int64_t row) const {
    constexpr int kHalf = kTileRows / 2;
    if (!is_pair) return {row / kTileRows, static_cast<int>(row % kTileRows)};
    const int64_t half = num_rows / 2, i = row < half ? row : row - half;
    return {i / kHalf, static_cast<int>(i % kHalf) + (row < half ? 0 : kHalf)};
  }
};

struct WeightLayout : RowBlocks {
  int64_t depth;        // k with its padding: 16-bit types are packed in pairs
  int64_t chunk_depth;  // k of a whole chunk
  int64_t num_chunks;
  int64_t num_blocks;

  constexpr explicit WeightLayout(const GemmWeight& w)
      : RowBlocks(w),
        depth(w.dtype == DType::kF32 ? w.depth : (w.depth + 1) / 2 * 2),
        chunk_depth(kChunkRowBytes / float_bytes(w.dtype)),
        num_chunks((w.depth + chunk_depth - 1) / chunk_depth),
        num_blocks(w.num_blocks() * GemmWeight::kBlock / kTileRows) {}

  // k of a chunk's row: the distance between its rows.
  constexpr int64_t pitch(int64_t chunk) const {
    const int64_t left = depth - chunk * chunk_depth;
    return left < chunk_depth ? left : chunk_depth;
  }
  // Where in a chunk's row the k-th of its elements stands, and which stands there.
  constexpr int64_t place_in_row(int64_t chunk, int row, int64_t k) const {
    if (pitch(chunk) < chunk_depth) return k;
    const int64_t unit = chunk_depth / 4;
    return turned_unit(row, static_cast<int>(k / unit)) * unit + k % unit;
  }
  // Elements from the start of the buffer to (row of the block, k).
  constexpr int64_t offset(int64_t block, int row, int64_t k) const {
    const int64_t chunk = k / chunk_depth;
    return block * kTileRows * depth + chunk * chunk_depth * kTileRows + row * pitch(chunk) +
           place_in_row(chunk, row, k % chunk_depth);
  }
};

}  // namespace dflash
