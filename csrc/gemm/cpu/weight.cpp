// Plain to packed weights and back.
#include <algorithm>

#include "gemm/cpu/kernels.h"

namespace dflash {

static constexpr int kBlock = GemmWeight::kBlock;

static constexpr int64_t kPiece = 128;  // k at a time: 32 rows of them stay in the nearest cache

// Index of a 16-bit element in its block.
static constexpr int64_t packed_index(int64_t k, int lane) {
  return (k / 2 * kBlock + lane) * 2 + (k % 2 == 0 ? 1 : 0);
}

static void pack_words(const GemmWeight& plain, int64_t block, int64_t first_k, int64_t num_k,
                       uint32_t* packed) {
  const auto* data = static_cast<const uint16_t*>(plain.data);
  const int64_t num_pairs = num_k / 2;
  for (int lane = 0; lane < kBlock; ++lane) {
    const int64_t row = plain.row_at(block, lane);
    uint32_t* to = packed + lane;
    if (row < 0) {
      for (int64_t i = 0; i < num_pairs + num_k % 2; ++i) to[i * kBlock] = 0;
      continue;
    }
    const uint16_t* from = data + row * plain.row_stride + first_k;
    for (int64_t i = 0; i < num_pairs; ++i) {
      to[i * kBlock] = static_cast<uint32_t>(from[2 * i]) << 16 | from[2 * i + 1];
    }
    if (num_k % 2) to[num_pairs * kBlock] = static_cast<uint32_t>(from[num_k - 1]) << 16;
  }
}

static void pack_floats(const GemmWeight& plain, int64_t block, int64_t first_k, int64_t num_k,
                        float* packed) {
  const auto* data = static_cast<const float*>(plain.data);
  for (int lane = 0; lane < kBlock; ++lane) {
    const int64_t row = plain.row_at(block, lane);
    const float* from = data + row * plain.row_stride + first_k;
    for (int64_t k = 0; k < num_k; ++k) packed[k * kBlock + lane] = row < 0 ? 0.0f : from[k];
  }
}

void pack_block(const GemmWeight& plain, int64_t block, int64_t first_k, int64_t num_k,
                void* packed) {
  for (int64_t k = 0; k < num_k; k += kPiece) {
    const int64_t count = std::min(kPiece, num_k - k);
    if (plain.dtype == DType::kF32) {
      pack_floats(plain, block, first_k + k, count, static_cast<float*>(packed) + k * kBlock);
    } else {
      auto* words = static_cast<uint32_t*>(packed) + k / 2 * kBlock;
      pack_words(plain, block, first_k + k, count, words);
    }
  }
}

void unpack_block(const UnpackParams& p, int64_t block) {
  const GemmWeight& w = p.packed;
  const char* from = static_cast<const char*>(w.data) + block * w.block_bytes();
  const int64_t stride = p.out.strides[1];
  for (int64_t first = 0; first < w.depth; first += kPiece) {
    const int64_t last = std::min(first + kPiece, w.depth);
    for (int lane = 0; lane < kBlock; ++lane) {
      const int64_t row = w.row_at(block, lane);
      if (row < 0) continue;
      if (w.dtype == DType::kF32) {
        const auto* floats = reinterpret_cast<const float*>(from) + lane;
        float* to = p.out.at<float>(row);
        for (int64_t k = first; k < last; ++k) to[k * stride] = floats[k * kBlock];
      } else {
        const auto* halves = reinterpret_cast<const uint16_t*>(from);
        uint16_t* to = p.out.at<uint16_t>(row);
        for (int64_t k = first; k < last; ++k) to[k * stride] = halves[packed_index(k, lane)];
      }
    }
  }
}

}  // namespace dflash
