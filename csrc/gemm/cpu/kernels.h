// The CPU matrix product, for the ops of every family that multiply rows by a weight: torch-free.
//
//   const GemmKernels& kernels = gemm_kernels();
//   kernels.pack_row(...) for each row of x                      once per call, in any thread
//   kernels.block_sums(w, block, rows, first, count, sums)       any block, rows, thread and order
//
// gemm/cpu_product.h does this on torch's threads; gemm/weight.h checks the argument `weight`.
//
// Law (L1): k ascends through chunks of 512, each chunk an fma chain from zero (fp32: eight chains,
// k mod 8, added as ((0+1)+(2+3))+((4+5)+(6+7))); the chunk sums are added in order. There is one
// such sum per (row, output), so neither the tile nor the thread can reach its bits, and every
// instruction set gives the same ones; only a chunk of bf16 by AMX is no such chain (amx_tile.h). A
// quantised weight has its groups for chunks: the product of
// a group's codes with x is such a chain from zero, for any type of x, and is added as
// y = fma(scale, chain, y), then y = fma(offset, sum of the group's x, y) if there are offsets.
#pragma once

#include "common/cpu/isa.h"
#include "gemm/params.h"

namespace dflash {

inline constexpr int64_t kGemmChunk = 512;   // k per chunk
inline constexpr int64_t kGemmMaxRows = 64;  // rows of x in one call of block_sums

// Rows of x as the main loop reads them: made by pack_row, `row_bytes` apart.
struct PackedRows {
  const char* data;
  int64_t row_bytes;
};

struct GemmKernels {
  // Bytes between packed rows of elements of `dtype`.
  int64_t (*row_bytes)(DType dtype, const RowForm& form);

  // Packs one row of x, after RMSNorm if norm_weight is there: rounded to x's dtype, so with the
  // bits of norm_row. x and norm_weight are contiguous.
  void (*pack_row)(const void* x, DType dtype, const RowForm& form, const ArrayView<1>& norm_weight,
                   float eps, char* packed);

  // sums[r * 32 + j] = the product of row first_row + r and output j of the block, for
  // r < num_rows <= kGemmMaxRows; of a plain weight too. 0 where the block is padding.
  void (*block_sums)(const GemmWeight& weight, int64_t block, const PackedRows& rows,
                     int64_t first_row, int64_t num_rows, float* sums);

  // Everything of verify_gemm after the sums, which are overwritten.
  void (*finish)(const VerifyGemmParams& p, int64_t block, int64_t first_row, int64_t num_rows,
                 float* sums);

  void (*norm_row)(const RmsNormParams& p, int64_t row);
};

const GemmKernels& gemm_kernels();  // for the instruction set in use

// Per instruction set; gemm_kernels() names only those of this architecture.
extern const GemmKernels kGemmPortable, kGemmAvx2, kGemmAvx512, kGemmAvx512Bf16, kGemmAmx;

// A block's elements first_k .. first_k + num_k - 1 of a plain weight, in packed order; first_k is
// even. Zero where it is padding.
void pack_block(const GemmWeight& plain, int64_t block, int64_t first_k, int64_t num_k,
                void* packed);
void unpack_block(const UnpackParams& p, int64_t block);

void pack_quant_block(const PackQuantParams& p, int64_t block);
void unpack_quant_block(const UnpackParams& p, int64_t block);

}  // namespace dflash
