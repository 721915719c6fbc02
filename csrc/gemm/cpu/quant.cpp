// Quantised weights of several makes to packed ones, and packed ones to numbers.
#include <algorithm>
#include <cstring>

#include "common/dispatch.h"
#include "gemm/cpu/kernels.h"
#include "gemm/quant_source.h"

namespace dflash {
namespace {

constexpr int kBlock = GemmWeight::kBlock;

void store_bits(DType dtype, uint32_t bits, int lane, char* line) {
  if (dtype == DType::kF32) {
    std::memcpy(line + 4 * lane, &bits, 4);
  } else {
    const auto half = static_cast<uint16_t>(bits);
    std::memcpy(line + 2 * lane, &half, 2);
  }
}

template <class Source>
void pack_from(const PackQuantParams& p, const Source& source, int64_t block) {
  const GemmWeight& w = p.to;
  const QuantFormat& quant = w.quant;
  const int bits = quant.bits(), per_word = 32 / bits;
  char* to = static_cast<char*>(p.packed) + block * w.block_bytes();
  for (int64_t first = 0, group = 0; first < w.depth; first += quant.group, ++group) {
    const int64_t num_k = std::min<int64_t>(quant.group, w.depth - first);
    for (int64_t i = 0; i < quant.num_words(num_k); ++i) {
      for (int lane = 0; lane < kBlock; ++lane) {
        const int64_t row = w.row_at(block, lane);
        uint32_t word = 0;
        for (int64_t k = i * per_word; k < (i + 1) * per_word; ++k) {
          const bool is_there = row >= 0 && k < num_k;
          const uint32_t code = is_there ? source.code(row, first + k) : quant.zero_code();
          word |= code << code_shift(bits, k);
        }
        std::memcpy(to + (i * kBlock + lane) * 4, &word, 4);
      }
    }
    to += quant.code_bytes(num_k);
    const bool has_terms = quant.offset != Offset::kNone;
    for (int lane = 0; lane < kBlock; ++lane) {
      const int64_t row = w.row_at(block, lane);
      store_bits(quant.scale_dtype, row < 0 ? 0 : source.scale(row, group), lane, to);
      if (!has_terms) continue;
      const uint32_t term = row < 0 ? 0 : source.term(row, group);
      store_bits(quant.scale_dtype, term, lane, to + quant.line_bytes());
    }
    to += quant.tail_bytes();
  }
}

}  // namespace

void pack_quant_block(const PackQuantParams& p, int64_t block) {
  with_source(p, [&](const auto& source) { pack_from(p, source, block); });
}

void unpack_quant_block(const UnpackParams& p, int64_t block) {
  const GemmWeight& w = p.packed;
  const QuantFormat& quant = w.quant;
  const int bits = quant.bits(), per_word = 32 / bits;
  const char* from = static_cast<const char*>(w.data) + block * w.block_bytes();
  for (int64_t first = 0; first < w.depth; first += quant.group) {
    const int64_t num_k = std::min<int64_t>(quant.group, w.depth - first);
    const auto* words = reinterpret_cast<const uint32_t*>(from);
    const char* scales = from + quant.code_bytes(num_k);
    from += quant.group_bytes(num_k);
    for (int lane = 0; lane < kBlock; ++lane) {
      const int64_t row = w.row_at(block, lane);
      if (row < 0) continue;
      float scale = 0.0f, term = 0.0f;
      (void)with_dtype<float, BF16, F16>(quant.scale_dtype, [&]<class T>(std::type_identity<T>) {
        const T* numbers = reinterpret_cast<const T*>(scales) + lane;
        scale = to_float(numbers[0]);
        if (quant.offset != Offset::kNone) term = to_float(numbers[kBlock]);
      });
      float* out = p.out.at<float>(row) + first * p.out.strides[1];
      for (int64_t k = 0; k < num_k; ++k) {
        const uint32_t word = words[k / per_word * kBlock + lane];
        const uint32_t code = word >> code_shift(bits, k) & ((1u << bits) - 1);
        const float c = code_value(quant.codes, code);
        out[k * p.out.strides[1]] = quant_value(quant.offset, c, scale, term);
      }
    }
  }
}

}  // namespace dflash
