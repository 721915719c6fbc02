// The main loop over tiles with a unit of plain C++ that adds as Intel's manual says of TDPBF16PS.
#include <bit>
#include <cmath>

#include "gemm/cpu/amx_tile.h"

using namespace dflash;

namespace {

struct Tile {
  int rows;
  float sums[16][16];
  uint32_t words[16][16];  // of operands
};
Tile tiles[8];

float even(uint32_t word) { return std::bit_cast<float>(word << 16); }
float odd(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000); }

struct ModelTiles {
  static void configure(int rows, int rows_below) {
    const int counts[]{rows, rows, rows_below, rows_below, rows, rows_below, 16, 16};
    for (int t = 0; t < 8; ++t) tiles[t].rows = counts[t];
  }
  static void release() {
    for (Tile& tile : tiles) tile = {};
  }
  template <int kTile>
  static void zero() {
    std::memset(tiles[kTile].sums, 0, sizeof tiles[kTile].sums);
  }
  template <int kTile>
  static void load(const char* p, int64_t stride) {
    for (int r = 0; r < tiles[kTile].rows; ++r) {
      std::memcpy(tiles[kTile].words[r], p + r * stride, kTileRowBytes);
    }
  }
  template <int kTile>
  static void store(float* p, int64_t stride) {
    for (int r = 0; r < tiles[kTile].rows; ++r) {
      std::memcpy(reinterpret_cast<char*>(p) + r * stride, tiles[kTile].sums[r], kTileRowBytes);
    }
  }
  template <int kSum, int kX, int kWeight>
  static void dot() {
    for (int m = 0; m < tiles[kX].rows; ++m) {
      for (int n = 0; n < 16; ++n) {
        float evens = 0, odds = 0;
        for (int k = 0; k < 16; ++k) {
          const uint32_t x = tiles[kX].words[m][k], w = tiles[kWeight].words[k][n];
          evens = std::fma(even(x), even(w), evens);
          odds = std::fma(odd(x), odd(w), odds);
        }
        tiles[kSum].sums[m][n] += evens + odds;
      }
    }
  }
};

}  // namespace

// One block of a packed weight; rows as pairs of k, `row_bytes` apart.
extern "C" void model_sums(const char* packed, int64_t depth, const char* rows, int64_t row_bytes,
                           int64_t num_rows, float* sums) {
  tile_sums<ModelTiles>([&](int64_t k, int64_t) { return packed + k / 2 * kWeightRowBytes; }, depth,
                        {rows, row_bytes}, 0, num_rows, sums);
}
