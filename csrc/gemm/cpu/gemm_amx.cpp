#include "gemm/cpu/amx_tile.h"
#include "gemm/cpu/avx512bf16.h"

namespace dflash {
namespace {

// GCC's own names of these instructions are macros, which take no template parameter.
struct AmxTiles {
  // The operand of ldtilecfg.
  struct Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Config) == 64);

  static void configure(int rows, int rows_below) {
    Config config;
    std::fill_n(config.row_bytes, 8, kTileRowBytes);
    const int above[]{rows, rows,       rows_below,   rows_below,
                      rows, rows_below, kTileMaxRows, kTileMaxRows};
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = static_cast<uint8_t>(std::max(above[tile], 1));  // 0 is not allowed
    }
    _tile_loadconfig(&config);
  }
  static void release() { _tile_release(); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"n"(kTile));
  }
  template <int kTile>
  static void load(const char* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "n"(kTile) : "memory");
  }
  template <int kTile>
  static void store(float* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "n"(kTile) : "memory");
  }
  template <int kSum, int kX, int kWeight>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(kSum), "n"(kX), "n"(kWeight));
  }
};

// Rows, epilogues and all other types are those of AVX-512-BF16.
void amx_block_sums(const GemmWeight& w, int64_t block, const PackedRows& rows, int64_t first_row,
                    int64_t num_rows, float* sums) {
  if (w.dtype != DType::kBF16 || w.quant || w.depth == 0) {
    return block_sums<Avx512Bf16>(w, block, rows, first_row, num_rows, sums);
  }
  const FlushDenormals flush;
  const char* packed = static_cast<const char*>(w.data) + block * w.block_bytes();
  alignas(64) char plain[kGemmChunk / 2 * kWeightRowBytes];
  tile_sums<AmxTiles>(
      [&](int64_t k, int64_t num_k) {
        if (w.is_packed) return packed + k / 2 * kWeightRowBytes;
        pack_block(w, block, k, num_k, plain);
        return static_cast<const char*>(plain);
      },
      w.depth, rows, first_row, num_rows, sums);
}

constexpr GemmKernels with_tiles(GemmKernels kernels) {
  kernels.block_sums = amx_block_sums;
  return kernels;
}

}  // namespace

constinit const GemmKernels kGemmAmx = with_tiles(kernels_of<Avx512Bf16>());

}  // namespace dflash
