// The product that every op with a weight shares: sums[token][weight row] of one CTA, in shared
// memory. The weight is the left operand of mma (16 rows), the tokens the right one (8 columns).
//
// Every lane copies to shared memory what it will read itself, 16 bytes at a time: 8 elements
// (fp32: 4) along k of one row. mma wants other elements of k in a lane, but the sum does not care
// which k is called which as long as both operands agree, so nothing is transposed. Only fp32,
// which has no mma, reads what neighbours copied.
//
//   reads  the weight once per tile of tokens, in runs of 512 bytes (packed) or 64 (plain);
//          the tokens once per CTA
#pragma once

#include "common/dispatch.h"
#include "device/ptx.cuh"
#include "gemm/cuda/splits.cuh"

namespace dflash {

// The operands of a product; k runs along the rows of both.
struct ProductParams {
  ArrayView<2> x;     // [M, K]
  GemmWeight weight;  // [N, K]
  int64_t num_tokens;
};

// A lane's place in the fragments: row g of 8, and the t-th of 4 pieces of 16 bytes. The slot in
// shared memory is turned by the row, so that fp32, where a lane reads one piece of 4 rows two
// apart, meets no bank twice.
__device__ inline int fragment_slot(int g, int t) { return 4 * g + turned_unit(g, t); }

// Copies count (<= 16 / sizeof(T)) elements and zeros for the rest.
template <class T>
__device__ inline void copy_piece(uint32_t to, const T* from, int64_t count, bool is_aligned,
                                  const void* anywhere) {
  constexpr int kPiece = 16 / sizeof(T);
  const int valid = count <= 0 ? 0 : (count < kPiece ? static_cast<int>(count) : kPiece);
  if (is_aligned) {
    cp_async_16(to, valid > 0 ? from : anywhere, valid * sizeof(T));
    return;
  }
  alignas(16) T elements[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) elements[i] = i < valid ? from[i] : T{};
  store_shared_16(to, *reinterpret_cast<const uint4*>(elements));
}

__device__ inline bool is_aligned_16(const void* data, int64_t stride_bytes) {
  return (reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(stride_bytes)) % 16 == 0;
}

// A row of a weight, whichever way the weight is laid out.
template <class T>
struct WeightRow {
  static constexpr int kPiece = 16 / sizeof(T), kChunk = 4 * kPiece;

  const T* start;  // plain: of the row; packed: of its block of 16; null: a row of zeros
  int place;       // in the block

  __device__ void find(const GemmWeight& w, const WeightLayout& layout, int64_t at) {
    const int64_t block = at / kTileRows;
    place = static_cast<int>(at & (kTileRows - 1));
    const int64_t row = at < 0 ? -1 : layout.row_at(block, place);
    const int64_t before = w.is_packed ? block * kTileRows * layout.depth : row * w.row_stride;
    start = row < 0 ? nullptr : static_cast<const T*>(w.data) + before;
  }
  // The t-th piece of 16 bytes of a chunk.
  __device__ const T* piece(bool is_packed, int64_t chunk, int64_t pitch, int t) const {
    if (!is_packed) return start + chunk * kChunk + t * kPiece;
    const int unit = pitch == kChunk ? turned_unit(place, t) : t;
    return start + chunk * kChunk * kTileRows + place * pitch + unit * kPiece;
  }
};

template <class T, GemmShape kShape>
struct Product {
  static constexpr int kPiece = 16 / sizeof(T);
  static constexpr int kChunk = 4 * kPiece;
  static constexpr int kFrags = kShape.frags, kTiles = kShape.token_tiles;

  float sums[kFrags][kTiles][4];

  const ProductParams& p;
  const WeightLayout layout;
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / kWarpSize;
  const int warp_n = warp % kShape.warps_n, warp_k = warp / kShape.warps_n;
  const uint32_t smem;  // this warp's first stage of the weight
  const uint32_t smem_x;
  WeightRow<T> weight_rows[kFrags][2];  // rows g and g + 8 of 16
  const T* x_rows;                      // row g of the first tile of 8 tokens
  const int64_t first_token;
  const bool x_is_aligned, weight_is_aligned;

  // place_of(i): where the CTA's i-th weight row stands among the blocks of 16 rows; what is not
  // among them counts as zeros. token: the CTA's first.
  template <class PlaceOf>
  __device__ Product(const ProductParams& params, char* shared, PlaceOf place_of, int64_t token)
      : p(params),
        layout(params.weight),
        smem(shared_address(shared) + 16 * warp * kShape.weight_vecs()),
        smem_x(shared_address(shared) +
               16 * (kShape.warps_k * kShape.warps_n * kShape.weight_vecs() +
                     warp_k * kShape.token_vecs())),
        x_rows(params.x.template at<T>(token + g) + t * kPiece),
        first_token(token),
        x_is_aligned(is_aligned_16(params.x.data, params.x.strides[0] * sizeof(T))),
        weight_is_aligned(
            params.weight.is_packed
                ? is_aligned_16(params.weight.data, layout.pitch(layout.num_chunks - 1) * sizeof(T))
                : is_aligned_16(params.weight.data, params.weight.row_stride * sizeof(T))) {
#pragma unroll
    for (int f = 0; f < kFrags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (warp_n * kFrags + f) * kTileRows + g + 8 * half;
        weight_rows[f][half].find(p.weight, layout, place_of(row));
      }
    }
  }

  __device__ void sync() const {  // the warps that share tokens
    if constexpr (kShape.warps_n == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // Sets a stage's copies of one chunk going.
  __device__ void load(int stage, int64_t chunk) const {
    const int64_t k = chunk * kChunk + t * kPiece;
    const uint32_t slot = 16 * (stage * kShape.stage_vecs() + fragment_slot(g, t));
    const int64_t pitch = layout.pitch(chunk);
#pragma unroll
    for (int f = 0; f < kFrags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const WeightRow<T>& row = weight_rows[f][half];
        copy_piece(smem + slot + 16 * (64 * f + 32 * half),
                   row.piece(p.weight.is_packed, chunk, pitch, t),
                   row.start == nullptr ? 0 : p.weight.depth - k, weight_is_aligned, p.weight.data);
      }
    }
#pragma unroll
    for (int tile = warp_n; tile < kTiles; tile += kShape.warps_n) {
      const int64_t token = first_token + 8 * tile + g;
      copy_piece(smem_x + slot + 16 * 32 * tile,
                 x_rows + 8 * tile * p.x.strides[0] + chunk * kChunk,
                 token < p.num_tokens ? p.weight.depth - k : 0, x_is_aligned, p.x.data);
    }
  }

  __device__ void multiply(int stage) {
    const uint32_t stage_bytes = 16 * stage * kShape.stage_vecs();
    const auto piece = [&](uint32_t base, int fragment, int row, int col) {
      return load_shared_16(base + stage_bytes + 16 * (32 * fragment + fragment_slot(row, col)));
    };
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll 1  // registers instead of spills
      for (int col = 0; col < 4; ++col) {
        uint4 w[kFrags][2];
#pragma unroll
        for (int f = 0; f < 2 * kFrags; ++f) w[f / 2][f % 2] = piece(smem, f, g, col);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 x[2]{piece(smem_x, tile, 2 * t, col), piece(smem_x, tile, 2 * t + 1, col)};
#pragma unroll
          for (int f = 0; f < kFrags; ++f) {
#pragma unroll
            for (int i = 0; i < 4; ++i) fma_piece(sums[f][tile][i], w[f][i / 2], x[i % 2]);
          }
        }
      }
    } else {
      uint4 w[kFrags][2];
#pragma unroll
      for (int f = 0; f < 2 * kFrags; ++f) w[f / 2][f % 2] = piece(smem, f, g, t);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 x = piece(smem_x, tile, g, t);
#pragma unroll
        for (int f = 0; f < kFrags; ++f) {
          const uint4 &top = w[f][0], &bottom = w[f][1];
          mma_m16n8k16<T>(sums[f][tile], top.x, bottom.x, top.y, bottom.y, x.x, x.y);
          mma_m16n8k16<T>(sums[f][tile], top.z, bottom.z, top.w, bottom.w, x.z, x.w);
        }
      }
    }
  }

  __device__ static void fma_piece(float& sum, const uint4& a, const uint4& b) {
    sum = fmaf(__uint_as_float(a.x), __uint_as_float(b.x), sum);
    sum = fmaf(__uint_as_float(a.y), __uint_as_float(b.y), sum);
    sum = fmaf(__uint_as_float(a.z), __uint_as_float(b.z), sum);
    sum = fmaf(__uint_as_float(a.w), __uint_as_float(b.w), sum);
  }

  // Runs chunks first .. last through the pipeline; after_step(chunk) follows each.
  template <class AfterStep>
  __device__ void run(int64_t first, int64_t last, int64_t num_steps, AfterStep after_step) {
    clear_sums(sums);
#pragma unroll 1
    for (int stage = 0; stage < kShape.stages - 1; ++stage) {
      if (first + stage < last) load(stage, first + stage);
      cp_async_commit();
    }
    int stage = 0;
#pragma unroll 1
    for (int64_t step = 0; step < num_steps; ++step) {
      const int64_t chunk = first + step, ahead = chunk + kShape.stages - 1;
      cp_async_wait<kShape.stages - 2>();
      sync();  // the chunk is there for all, and all have left the stage that is filled next
      const int free_stage = stage == 0 ? kShape.stages - 1 : stage - 1;
      if (ahead < last) load(free_stage, ahead);
      cp_async_commit();
      if (chunk < last) {
        multiply(stage);
        after_step(chunk);
      }
      stage = stage + 1 == kShape.stages ? 0 : stage + 1;
    }
  }

  // The whole product. Its sums are then read from `shared` by sum_at.
  __device__ void compute(char* shared) {
    run_splits<kShape>(*this, layout.num_chunks);
    store_sums<kShape>(*this, shared);
  }
};

}  // namespace dflash
