// The arithmetic of a block of 64 keys, for the 16 pairs of a warp. L1: every sum has one order,
// and a key that a pair does not see is chosen away, never multiplied by zero.
//
//   score   one chain of mma over the head dimension from zero (fp32: of fmaf)
//   weight  exp(score - max), max over this block and those before
//   sum     the lane's columns in ascending order; the four lanes of a pair at the end of the leaf
//   out     fmaf(out, alpha, block), the block's values one chain of mma over ascending positions
//           from zero, so a block without a visible key leaves out as it was
#pragma once

#include "attention/cuda/keys.cuh"
#include "attention/cuda/state.cuh"

namespace dflash {

inline constexpr int kKeyTiles = kBlockKeys / 8;

using Scores = float[kKeyTiles][4];

// The same value, of which the compiler knows nothing: what is derived from it inside a loop is
// derived there, not before it and kept in registers all through.
__device__ inline uint32_t unknown(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Weights as the left operand of a product: rounded to T here.
template <class T>
struct RoundedWeights {
  uint32_t a[kKeyTiles / 2][4];

  __device__ explicit RoundedWeights(const Scores& w) {
#pragma unroll
    for (int i = 0; i < kKeyTiles * 2; ++i) {
      const float* pair = w[i / 2] + i % 2 * 2;
      a[i / 4][i / 2 % 2 * 2 + i % 2] = round_pair<T>(pair[0], pair[1]);
    }
  }
};

// Products on the tensor cores, from shared memory: 16 pairs of q, 64 keys, their values.
template <class T, int kDim>
struct MatrixBlock {
  static constexpr bool kSharesKeysAndValues = false;

  __device__ static uint32_t address(uint32_t base, int row, int piece) {
    return base + piece_offset(row, piece);
  }

  __device__ static void score(uint32_t q, uint32_t k, int64_t k_dim, Scores& scores) {
    const auto lane = static_cast<int>(unknown(lane_index()));
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll 4
    for (int step = 0; step < kDim / 16; ++step) {
      if (16 * step >= k_dim) break;
      const uint4 a =
          load_matrices(address(q, 16 * warp_index() + lane % 16, 2 * step + lane / 16));
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; tile += 2) {
        const uint4 b =
            load_matrices(address(k, 8 * tile + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
        mma_m16n8k16<T>(scores[tile], a.x, a.y, a.z, a.w, b.x, b.y);
        mma_m16n8k16<T>(scores[tile + 1], a.x, a.y, a.z, a.w, b.z, b.w);
      }
    }
  }

  __device__ static void accumulate(const Scores& w, uint32_t v, int64_t v_dim,
                                    const float (&alpha)[2], LaneState<kDim>& state) {
    const RoundedWeights<T> weights(w);
    const auto lane = static_cast<int>(unknown(lane_index()));
#pragma unroll
    for (int tile = 0; tile < kDim / 8; tile += 2) {
      if (8 * tile >= v_dim) break;
      float sums[2][4] = {};
#pragma unroll
      for (int step = 0; step < kBlockKeys / 16; ++step) {
        const uint4 b =
            load_matrices_transposed(address(v, 16 * step + lane % 16, tile + lane / 16));
        const uint32_t (&a)[4] = weights.a[step];
        mma_m16n8k16<T>(sums[0], a[0], a[1], a[2], a[3], b.x, b.y);
        mma_m16n8k16<T>(sums[1], a[0], a[1], a[2], a[3], b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& out = state.out[tile + i / 4][i % 4];
        out = fmaf(out, alpha[i % 4 / 2], sums[i / 4][i % 4]);
      }
    }
  }
};

// What stands for the values when a leaf has some that are not finite: 0 times such a value would
// spoil pairs that do not see it. So they count as zeros first, and then, kind by kind, as ones,
// which tells who sees how many.
enum class Values : int { kStored, kFinite, kInfinities, kNegativeInfinities, kNans };
inline constexpr int kCarefulPasses = 4;  // kFinite .. kNans

template <class T>
__device__ inline uint32_t value_half(uint32_t half, Values values) {
  constexpr uint32_t kExponent = std::is_same_v<T, BF16> ? 0x7f80 : 0x7c00;
  constexpr uint32_t kOne = std::is_same_v<T, BF16> ? 0x3f80 : 0x3c00;
  switch (values) {
    case Values::kFinite: return (half & kExponent) == kExponent ? 0 : half;
    case Values::kInfinities: return half == kExponent ? kOne : 0;
    case Values::kNegativeInfinities: return half == (kExponent | 0x8000) ? kOne : 0;
    case Values::kNans: return (half & 0x7fff) > kExponent ? kOne : 0;
    default: return half;
  }
}

// By all threads that compute, in place.
template <class T>
__device__ inline void replace_values(char* tile, int num_bytes, Values values) {
  auto* words = reinterpret_cast<uint32_t*>(tile);
  for (int i = threadIdx.x; i < num_bytes / 4; i += kAttentionThreads) {
    const uint32_t word = words[i];
    words[i] = value_half<T>(word & 0xffff, values) | value_half<T>(word >> 16, values) << 16;
  }
}

// The same places and orders with fmaf, for fp32. Keys and values take turns in one buffer, weights
// go through shared memory, q comes from the cache.
template <int kDim>
struct FloatBlock {
  static constexpr bool kSharesKeysAndValues = true;

  __device__ static float4 piece(uint32_t base, int row, int index) {
    const uint4 bits = load_shared_16(base + piece_offset(row, index));
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
            __uint_as_float(bits.w)};
  }

  // q: rows lane / 4 and 8 below; null: no such pair.
  __device__ static void score(const float* const (&q)[2], uint32_t k, int64_t k_dim,
                               Scores& scores) {
    const int t = lane_index() % 4;
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (int index = 0; 4 * index < k_dim; ++index) {
      float a[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = q[i / 4] ? q[i / 4][4 * index + i % 4] : 0.0f;
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
        for (int col = 0; col < 2; ++col) {
          const float4 b = piece(k, 8 * tile + 2 * t + col, index);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float& sum = scores[tile][2 * r + col];
            sum = fmaf(a[r][0], b.x, sum);
            sum = fmaf(a[r][1], b.y, sum);
            sum = fmaf(a[r][2], b.z, sum);
            sum = fmaf(a[r][3], b.w, sum);
          }
        }
      }
    }
  }

  // weights: [16][kBlockKeys] of this warp; 0: not seen.
  __device__ static void accumulate(const Scores& w, float* weights, const float* v, int64_t v_dim,
                                    const float (&alpha)[2], LaneState<kDim>& state) {
    const uint32_t lane = unknown(lane_index()), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < kKeyTiles * 4; ++i) {
      weights[(g + i % 4 / 2 * 8) * kBlockKeys + i / 4 * 8 + 2 * t + i % 2] = w[i / 4][i % 4];
    }
    __syncwarp();
#pragma unroll
    for (int tile = 0; tile < kDim / 8; ++tile) {
      if (8 * tile >= v_dim) break;
      float sums[4] = {};
#pragma unroll 1
      for (int key = 0; key < kBlockKeys; ++key) {
        const uint32_t col = 8 * tile + 2 * t;
        const float* row = v + piece_offset(key, col / 4) / 4 + col % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float weight = weights[(g + i / 2 * 8) * kBlockKeys + key];
          if (weight != 0) sums[i] = fmaf(weight, row[i % 2], sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        state.out[tile][i] = fmaf(state.out[tile][i], alpha[i / 2], sums[i]);
      }
    }
    __syncwarp();  // the weights are read
  }
};

}  // namespace dflash
