// What every backend of the gemm ops receives: no torch, no CUDA.
#pragma once

#include "common/views.h"
#include "gemm/quant.h"

namespace dflash {

// How rows of x are packed for a product.
struct RowForm {
  int64_t depth;
  int32_t group = 0;              // k per sum, where the weight's groups have offsets; 0: no sums
  Codes int8_for = Codes::kNone;  // rounded to int8, in the order in which such codes meet it
};

// A weight [num_rows, depth], one output per row, as it stands in memory:
//   plain   rows of `depth` elements, `row_stride` apart
//   packed  blocks of 32 outputs, a block after the other (see pack_weight):
//           16-bit types  [ceil(depth / 2)][32] words of two k, the even one in the high half
//           fp32          [depth][32]
//   quantised  the same blocks, of bytes (see QuantFormat)
// A pair (gate rows 0 .. I-1, up rows I .. 2I-1) has gate row 16b + j in output j of block b and
// its up row in output 16 + j.
struct GemmWeight {
  static constexpr int kBlock = 32;

  const void* data;
  DType dtype;  // of the rows that it multiplies, and of its own elements unless quantised
  int64_t num_rows;
  int64_t depth;
  int64_t row_stride;
  bool is_packed;
  bool is_pair;
  QuantFormat quant = {};
  bool has_int8_rows = false;  // it multiplies rows rounded to int8

  constexpr int64_t num_blocks() const {
    const int64_t rows = is_pair ? num_rows / 2 : num_rows, width = is_pair ? kBlock / 2 : kBlock;
    return (rows + width - 1) / width;
  }
  constexpr int64_t block_bytes() const {
    if (quant) return quant.block_bytes(depth);
    return (dtype == DType::kF32 ? depth : (depth + 1) / 2) * kBlock * 4;
  }
  // Whether the next one's rows follow in memory, as slices of one tensor do: both are one weight.
  bool is_followed_by(const GemmWeight& next) const {
    const int64_t bytes =
        is_packed ? num_blocks() * block_bytes() : num_rows * row_stride * float_bytes(dtype);
    return !is_pair && !next.is_pair && !quant && !next.quant && dtype == next.dtype &&
           depth == next.depth && is_packed == next.is_packed && row_stride == next.row_stride &&
           (!is_packed || num_rows % kBlock == 0) &&
           static_cast<const char*>(data) + bytes == next.data;
  }
  constexpr RowForm row_form() const {
    return {depth, quant.offset == Offset::kNone ? 0 : quant.group,
            has_int8_rows ? quant.codes : Codes::kNone};
  }
  // The row whose output stands at `lane` of a block; -1: padding.
  constexpr int64_t row_at(int64_t block, int lane) const {
    if (!is_pair) {
      const int64_t row = block * kBlock + lane;
      return row < num_rows ? row : -1;
    }
    const int64_t half = num_rows / 2, row = block * (kBlock / 2) + lane % (kBlock / 2);
    return row < half ? row + (lane < kBlock / 2 ? 0 : half) : -1;
  }
};

struct PackWeightParams {
  GemmWeight plain;
  void* packed;  // [num_blocks, block_bytes]
};

// What pack_w8 and pack_w4 read. GPTQ before version 2 stores its zeros less one.
enum class QuantSource : int32_t { kPlain, kQ8_0, kQ4_0, kQ4_1, kGptq, kGptqV2, kAwq };

struct PackQuantParams {
  QuantSource source;
  ArrayView<2> weight;  // plain [N, K]; Q*_* [N, bytes]; GPTQ [K / 8, N]; AWQ [K, N / 8]
  ArrayView<2> scales;  // plain [ceil(N / block_rows), groups]; GPTQ, AWQ [groups, N]
  ArrayView<2> zeros;   // GPTQ, AWQ [groups, ceil(N / 8)]?
  int64_t block_rows;   // plain: rows that share a scale
  bool is_one_group;    // one scale for all of k
  GemmWeight to;        // its data is not there yet
  void* packed;         // [num_blocks, block_bytes]
};

struct UnpackParams {
  GemmWeight packed;
  ArrayOut<2> out;  // [num_rows, depth]; fp32 of a quantised weight
};

struct RmsNormParams {
  ArrayView<2> x;       // [M, H]
  ArrayView<1> weight;  // [H]
  float eps;
  ArrayOut<2> out;  // [M, H]
  int64_t num_rows;
  int64_t depth;
  const int64_t* row_count = nullptr;  // [1]?  CUDA: of the rows, how many there are
};

enum class Activation : int32_t { kNone, kSilu, kSiluMul };

struct VerifyGemmParams {
  ArrayView<2> x;            // [M, K]
  ArrayView<1> norm_weight;  // [K]?   x is RMS-normed first
  float eps;
  GemmWeight weight;      // [N, K]
  ArrayView<2> bias;      // [N]?      row stride 0
  ArrayView<2> addend;    // [M, N]?
  ArrayView<2> residual;  // [M, num_outputs]?
  Activation act;
  ArrayOut<2> out;  // [M, num_outputs]
  int64_t num_rows;
  int64_t num_outputs;                 // N, or N / 2 for kSiluMul
  const int64_t* row_count = nullptr;  // [1]?  CUDA: of the rows, how many there are
};

struct SumShardsParams {
  ArrayView<3> shards;       // [S, M, N]
  ArrayView<2> residual;     // [M, N]?   added last
  ArrayView<1> norm_weight;  // [N]?
  float eps;
  int64_t num_shards;  // S
  int64_t num_rows;    // M
  int64_t num_cols;    // N

  ArrayOut<2> sum;     // [M, N]
  ArrayOut<2> normed;  // [M, N], or [0, N] without a norm
};

}  // namespace dflash
