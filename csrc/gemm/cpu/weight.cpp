// Plain to packed weights and back.
#include "common/dispatch.h"
#include "gemm/cpu/kernels.h"

namespace dflash {

static constexpr int kBlock = GemmWeight::kBlock;

// Calls with_word(k, i) for the 16-bit element k of a block's packed row, i being its index / lane.
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
  if (plain.dtype == DType::kF32) {
    pack_floats(plain, block, first_k, num_k, static_cast<float*>(packed));
  } else {
    pack_words(plain, block, first_k, num_k, static_cast<uint32_t*>(packed));
  }
}

void unpack_block(const UnpackParams& p, int64_t block) {
  const GemmWeight& w = p.packed;
  const char* from = static_cast<const char*>(w.data) + block * w.block_bytes();
  for (int lane = 0; lane < kBlock; ++lane) {
    const int64_t row = w.row_at(block, lane);
    if (row < 0) continue;
    for (int64_t k = 0; k < w.depth; ++k) {
      const int64_t at = k * p.out.strides[1];
      if (w.dtype == DType::kF32) {
        p.out.at<float>(row)[at] = reinterpret_cast<const float*>(from)[k * kBlock + lane];
      } else {
        const auto* halves = reinterpret_cast<const uint16_t*>(from);
        p.out.at<uint16_t>(row)[at] = halves[packed_index(k, lane)];
      }
    }
  }
}

}  // namespace dflash
