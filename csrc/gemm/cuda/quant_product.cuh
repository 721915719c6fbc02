// The product with a quantised weight: sums[token][weight row] of one CTA, in shared memory, as
// product.cuh has them for plain weights. The codes are bf16 pairs on their way from shared memory
// to mma; so is x, in parts (quant_rows.h).
//
// Law (L1): with c of a code and o as the CPU has them, each 32 k of a row, in ascending order,
// make
//   C = the chain from zero of the two mma of each part of x, c * x;  C = t * C with int8 rows
//   y = fma(scale, C, y), and y = fma(o, X, y) if there are offsets, X being C for c = 1
// in each of kGemmSplits splits of the chunks from zero; their sums are added in ascending order.
//
//   reads  the weight once per tile of tokens, codes in runs of 512 bytes; the tokens once per CTA
#pragma once

#include "device/ptx.cuh"
#include "gemm/cuda/product.cuh"
#include "gemm/cuda/quant_decode.cuh"
#include "gemm/cuda/quant_plan.h"

namespace dflash {

struct QuantProductParams {
  QuantRows rows;
  GemmWeight weight;  // [N, K]
  int64_t num_tokens;
  QuantStages stages;
};

template <GemmShape kShape>
struct QuantProduct {
  static constexpr int kFrags = kShape.frags, kTiles = kShape.token_tiles;
  static constexpr int kRows = kFrags * kTileRows;  // of a warp
  static constexpr int kRowsPerLane = (kRows + kWarpSize - 1) / kWarpSize;

  float sums[kFrags][kTiles][4];
  float scales[kFrags][2], offsets[kFrags][2];  // of rows g and g + 8, for the group at hand

  const QuantProductParams& p;
  const QuantLayout layout;
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / kWarpSize;
  const int warp_n = warp % kShape.warps_n, warp_k = warp / kShape.warps_n;
  const bool has_offsets, has_row_scales;
  const int num_tokens, num_tiles;  // of the CTA, and those of them that there are
  const int weight_bytes, token_bytes, stage_bytes;
  const uint32_t smem;               // this warp's codes in the first stage, then its scales
  const uint32_t smem_x;             // [32 k][part][token] 64 bytes, then the scales of the tokens
  const char* code_rows[kFrags][2];  // rows g and g + 8, at the lane's 16 bytes; or null
  const char* scale_rows[kRowsPerLane];  // the words that hold the first scale of rows lane, ..
  uint32_t places;                       // of rows g and g + 8 in their tiles, 4 bits each
  const int64_t first_token;
  const bool x_is_aligned, weight_is_aligned;

  // place_of(i): where the CTA's i-th weight row stands among the tiles of 16 rows; what is not
  // among them counts as zeros. token: the CTA's first.
  template <class PlaceOf>
  __device__ QuantProduct(const QuantProductParams& params, char* shared, PlaceOf place_of,
                          int64_t token)
      : p(params),
        layout(params.weight),
        has_offsets(params.weight.quant.offset != Offset::kNone),
        has_row_scales(params.rows.scales != nullptr),
        num_tokens(static_cast<int>(min(int64_t{params.stages.tokens}, params.num_tokens - token))),
        num_tiles((num_tokens + 7) / 8),
        weight_bytes(quant_weight_bytes(params.weight.quant, kFrags)),
        token_bytes(params.rows.num_planes * params.stages.tokens *
                    quant_token_bytes(params.weight.quant, has_row_scales)),
        stage_bytes(kShape.warps_k * (kShape.warps_n * weight_bytes + token_bytes)),
        smem(shared_address(shared) + warp * weight_bytes),
        smem_x(shared_address(shared) + kShape.warps_k * kShape.warps_n * weight_bytes +
               warp_k * token_bytes),
        places(0),
        first_token(token),
        x_is_aligned(is_aligned_16(params.rows.x,
                                   (params.rows.stride | params.rows.plane_stride) * sizeof(BF16))),
        weight_is_aligned(is_aligned_16(params.weight.data, 0)) {
    const char* data = static_cast<const char*>(p.weight.data);
    const auto is_there = [&](int64_t place) {
      return place >= 0 &&
             layout.row_at(place / kTileRows, static_cast<int>(place % kTileRows)) >= 0;
    };
#pragma unroll
    for (int f = 0; f < kFrags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t place = place_of(warp_n * kRows + f * kTileRows + g + 8 * half);
        const int in_tile = static_cast<int>(place & (kTileRows - 1));
        places |= static_cast<uint32_t>(in_tile) << 4 * (2 * f + half);
        code_rows[f][half] = is_there(place) ? data + layout.codes_of_tile(place / kTileRows) +
                                                   in_tile * kChunkRowBytes + 16 * t
                                             : nullptr;
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsPerLane; ++i) {
      const int row = lane + kWarpSize * i;
      const int64_t place = row < kRows ? place_of(warp_n * kRows + row) : -1;
      const int64_t at =
          is_there(place)
              ? layout.scale_of_row(place / kTileRows, static_cast<int>(place % kTileRows), 0)
              : -1;
      scale_rows[i] = at < 0 ? nullptr : data + at / 4 * 4;
    }
  }

  __device__ int place(int f, int half) const { return places >> 4 * (2 * f + half) & 15; }

  __device__ void sync() const {  // the warps that share tokens
    if constexpr (kShape.warps_n == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // ---- copies: sets those of one chunk going, into a stage
  __device__ void load(int stage, int64_t chunk, bool is_first) const {
    load_codes(stage * stage_bytes, chunk);
    load_scales(stage * stage_bytes, chunk, is_first);
    load_tokens(stage * stage_bytes, chunk);
  }

  __device__ void load_codes(uint32_t stage, int64_t chunk) const {
    const int num_words = layout.words_in(chunk);
    const bool is_whole = num_words == QuantLayout::kChunkWords && weight_is_aligned;
#pragma unroll
    for (int f = 0; f < kFrags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t to = smem + stage + 16 * (64 * f + 32 * half + lane);
        const char* row = code_rows[f][half];
        if (is_whole) {
          const char* from = row + chunk * kTileRows * kChunkRowBytes;
          cp_async_16(to, row != nullptr ? from : p.weight.data, row != nullptr ? 16 : 0);
        } else {
          store_shared_16(to, gather(row, place(f, half), chunk, num_words));
        }
      }
    }
  }

  // The lane's words of a narrow chunk, or of a weight at an odd address.
  __device__ uint4 gather(const char* row, int in_tile, int64_t chunk, int num_words) const {
    const char* tile = row - in_tile * kChunkRowBytes - 16 * t + chunk * kTileRows * kChunkRowBytes;
    return gather_codes(layout, tile, weight_is_aligned, in_tile, t,
                        row == nullptr ? 0 : num_words);
  }

  __device__ void load_scales(uint32_t stage, int64_t chunk, bool is_first) const {
    const QuantFormat& quant = layout.quant;
    const int64_t first_k = chunk * layout.chunk_depth(),
                  num_groups = quant.num_groups(layout.depth);
    if (!has_new_scales(quant, first_k, is_first)) return;
    const int lines = has_offsets ? 2 : 1, count = quant_scale_lines(quant) / lines;
    for (int i = 0; i < count * lines; ++i) {
      const int64_t group = first_k / quant.group + i / lines;
      const int64_t at = group * quant.tail_bytes() + i % lines * quant.line_bytes();
#pragma unroll
      for (int r = 0; r < kRowsPerLane; ++r) {
        const int row = lane + kWarpSize * r;
        if (row >= kRows) continue;
        const bool is_there = scale_rows[r] != nullptr && group < num_groups;
        const char* from = is_there ? scale_rows[r] + at : static_cast<const char*>(p.weight.data);
        const uint32_t to = smem + stage + 64 * kRows + 4 * (i * kRows + row);
        if (weight_is_aligned) {
          cp_async_4(to, from, is_there ? 4 : 0);
        } else {
          store_shared_4(to, is_there ? load_word(from, weight_is_aligned) : 0);
        }
      }
    }
  }

  // Where 64 bytes of a token stand in a stage.
  __device__ uint32_t token_at(uint32_t stage, int part, int plane, int token) const {
    return smem_x + stage + 64 * ((part * p.rows.num_planes + plane) * p.stages.tokens + token);
  }
  __device__ uint32_t token_scales_at(uint32_t stage, int token) const {
    const int parts = layout.chunk_depth() / kRowScaleDepth;
    return smem_x + stage + 64 * parts * p.rows.num_planes * p.stages.tokens + 16 * token;
  }

  __device__ void load_tokens(uint32_t stage, int64_t chunk) const {
    const int parts = layout.chunk_depth() / kRowScaleDepth;
    for (int plane = 0; plane < p.rows.num_planes; ++plane) {
      for (int i = warp_n; i < num_tiles * parts; i += kShape.warps_n) {
        const int part = i % parts, token = i / parts * 8 + g;
        if (token >= num_tokens) continue;
        const int64_t k = chunk * layout.chunk_depth() + part * kRowScaleDepth + 8 * t;
        const BF16* from =
            p.rows.x + plane * p.rows.plane_stride + (first_token + token) * p.rows.stride + k;
        copy_piece(token_at(stage, part, plane, token) + 16 * t, from, layout.depth - k,
                   x_is_aligned, p.rows.x);
      }
    }
    if (!has_row_scales || warp_n != 0 || lane >= num_tokens) return;
    const float* from =
        p.rows.scales + (first_token + lane) * p.rows.scale_stride + chunk * kChunkRowScales;
    cp_async_16(token_scales_at(stage, lane), from, 16);
  }

  // ---- arithmetic
  // The scales and offsets of a group that has its lines there.
  __device__ void read_scales(uint32_t stage, int group) {
    const QuantFormat& quant = layout.quant;
    const int lines = has_offsets ? 2 : 1;
#pragma unroll
    for (int f = 0; f < kFrags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto number = [&](int line) {
          const int row = f * kTileRows + g + 8 * half;
          const uint32_t from =
              smem + stage + 64 * kRows + 4 * ((group * lines + line) * kRows + row);
          return decode_scale(quant.scale_dtype, load_shared_4(from), place(f, half) % 2 != 0);
        };
        const float scale = number(0);
        scales[f][half] = scale;
        offsets[f][half] = has_offsets ? offset_value(quant.offset, scale, number(1)) : 0.0f;
      }
    }
  }

  template <int kBits>
  __device__ void multiply(uint32_t stage, int64_t chunk, bool is_first) {
    constexpr int kParts = 128 / kBits / 8;  // of 32 k
    const int64_t first_k = chunk * (kParts * kRowScaleDepth);
    uint4 codes[kFrags][2];
#pragma unroll
    for (int i = 0; i < 2 * kFrags; ++i) {
      codes[i / 2][i % 2] = load_shared_16(smem + stage + 16 * (32 * i + lane));
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t k = first_k + part * kRowScaleDepth;
      if (has_new_scales(layout.quant, k, is_first && part == 0)) {
        read_scales(stage, part * kRowScaleDepth / layout.quant.group);
      }
      uint32_t pairs[kFrags][2][4];
#pragma unroll
      for (int i = 0; i < 2 * kFrags; ++i) {
        decode_part<kBits>(layout.quant.codes, codes[i / 2][i % 2], part, pairs[i / 2][i % 2]);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile < num_tiles) multiply_tile(stage, part, tile, pairs);
      }
    }
  }

  __device__ void multiply_tile(uint32_t stage, int part, int tile,
                                const uint32_t (&pairs)[kFrags][2][4]) {
    const int token = 8 * tile + g;
    float chains[kFrags][4] = {}, x_sums[4] = {};
#pragma unroll 1
    for (int plane = 0; plane < p.rows.num_planes; ++plane) {
      uint4 x{};
      if (token < num_tokens) x = load_shared_16(token_at(stage, part, plane, token) + 16 * t);
#pragma unroll
      for (int f = 0; f < kFrags; ++f) {
        const uint32_t (&top)[4] = pairs[f][0], (&bottom)[4] = pairs[f][1];
        mma_m16n8k16<BF16>(chains[f], top[0], bottom[0], top[1], bottom[1], x.x, x.y);
        mma_m16n8k16<BF16>(chains[f], top[2], bottom[2], top[3], bottom[3], x.z, x.w);
      }
      if (has_offsets) {
        mma_m16n8k16<BF16>(x_sums, kOnePair, kOnePair, kOnePair, kOnePair, x.x, x.y);
        mma_m16n8k16<BF16>(x_sums, kOnePair, kOnePair, kOnePair, kOnePair, x.z, x.w);
      }
    }
    float row_scales[2] = {1.0f, 1.0f};
    if (has_row_scales) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = min(8 * tile + 2 * t + i, num_tokens - 1);
        row_scales[i] = __uint_as_float(load_shared_4(token_scales_at(stage, column) + 4 * part));
      }
    }
#pragma unroll
    for (int f = 0; f < kFrags; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = sums[f][tile][i];
        const float chain = row_scales[i % 2] * chains[f][i];
        sum = fmaf(scales[f][i / 2], chain, sum);
        if (has_offsets) sum = fmaf(offsets[f][i / 2], row_scales[i % 2] * x_sums[i], sum);
      }
    }
  }

  // ---- the loop: runs chunks first .. last through the pipeline; after_step(chunk) follows each
  template <class AfterStep>
  __device__ void run(int64_t first, int64_t last, int64_t num_steps, AfterStep after_step) {
    const int num_stages = p.stages.count;
    clear_sums(sums);
#pragma unroll 1
    for (int stage = 0; stage < num_stages - 1; ++stage) {
      if (first + stage < last) load(stage, first + stage, stage == 0);
      cp_async_commit();
    }
    int stage = 0;
#pragma unroll 1
    for (int64_t step = 0; step < num_steps; ++step) {
      const int64_t chunk = first + step, ahead = chunk + num_stages - 1;
      cp_async_wait(num_stages - 2);
      sync();  // the chunk is there for all, and all have left the stage that is filled next
      const int free_stage = stage == 0 ? num_stages - 1 : stage - 1;
      if (ahead < last) load(free_stage, ahead, false);
      cp_async_commit();
      if (chunk < last) {
        if (layout.quant.bits() == 4) {
          multiply<4>(stage * stage_bytes, chunk, step == 0);
        } else {
          multiply<8>(stage * stage_bytes, chunk, step == 0);
        }
        after_step(chunk);
      }
      stage = stage + 1 == num_stages ? 0 : stage + 1;
    }
  }

  // The whole product. Its sums are then read from `shared` by sum_at.
  __device__ void compute(char* shared) {
    run_splits<kShape>(*this, layout.num_chunks());
    store_sums<kShape>(*this, shared);
  }
};

}  // namespace dflash
