// How CUDA kernels lay a quantised weight out, in blocks of the size that QuantFormat gives: first
// the codes of 16 outputs and then of the other 16, each cut along k into chunks of 64 bytes a row;
// then, group after group, the scales of the 32 outputs and their zeros or mins.
//
// A chunk is 16 rows one under the other, 1 KB that a warp reads in two coalesced accesses of 16
// bytes a lane. The four lanes of a row take k = 8 t .. 8 t + 7 of every 32, as mma wants it, so
// the words of a whole chunk's row are turned; the last chunk may be narrower and has them in
// order. In a word the even k stand in the low half.
//
// Rows of a pair are arranged as in layout.h.
#pragma once

#include "gemm/cuda/layout.h"

namespace dflash {

struct QuantLayout : RowBlocks {
  static constexpr int kChunkWords = kChunkRowBytes / 4;  // of a row

  QuantFormat quant;
  int64_t depth;
  int64_t row_words;
  int64_t block_bytes;
  int64_t num_tiles;  // of 16 rows

  constexpr explicit QuantLayout(const GemmWeight& w)
      : RowBlocks(w),
        quant(w.quant),
        depth(w.depth),
        row_words(w.quant.num_words(w.depth)),
        block_bytes(w.block_bytes()),
        num_tiles(w.num_blocks() * GemmWeight::kBlock / kTileRows) {}

  constexpr int per_word() const { return 32 / quant.bits(); }
  constexpr int chunk_depth() const { return kChunkWords * per_word(); }
  constexpr int64_t num_chunks() const { return (row_words + kChunkWords - 1) / kChunkWords; }
  constexpr int words_in(int64_t chunk) const {
    const int64_t left = row_words - chunk * kChunkWords;
    return left < kChunkWords ? static_cast<int>(left) : kChunkWords;
  }

  // The word that stands at a place of a whole chunk's row.
  constexpr int word_at(int place) const {
    const int t = place / 4, i = place % 4;
    return quant.bits() == 4 ? 4 * i + t : i / 2 * 8 + 2 * t + i % 2;
  }
  constexpr int place_of(int word) const {
    if (quant.bits() == 4) return word % 4 * 4 + word / 4;
    return word % 8 / 2 * 4 + word / 8 * 2 + word % 2;
  }
  // Where the code of k stands in its word.
  constexpr int shift(int64_t k) const {
    const int i = static_cast<int>(k % per_word());
    return i / 2 * quant.bits() + (i % 2 == 0 ? 0 : 16);
  }

  // Bytes from the start of the buffer.
  constexpr int64_t codes_of_tile(int64_t tile) const {
    return tile / 2 * block_bytes + tile % 2 * kTileRows * row_words * 4;
  }
  constexpr int64_t scale_of_row(int64_t tile, int row, int64_t group) const {
    const int64_t lane = tile % 2 * kTileRows + row;
    return tile / 2 * block_bytes + quant.code_bytes(depth) + group * quant.tail_bytes() +
           lane * quant.line_bytes() / QuantFormat::kLanes;
  }
};

}  // namespace dflash
