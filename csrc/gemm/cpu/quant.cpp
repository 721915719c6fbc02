// Quantised weights of several makes to packed ones, and packed ones to numbers.
#include <algorithm>
#include <array>
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

// A word's codes from k on, of which `count` are there.
template <class Source>
uint32_t pack_word(const QuantFormat& quant, const Source& source, int64_t row, int64_t k,
                   int64_t count) {
  const int bits = quant.bits(), per_word = 32 / bits;
  if (row >= 0 && count >= per_word) return word_of_codes(bits, source.codes(row, k));
  uint32_t codes = 0;
  for (int i = 0; i < per_word; ++i) {
    const bool is_there = row >= 0 && i < count;
    codes |= (is_there ? source.code(row, k + i) : quant.zero_code()) << bits * i;
  }
  return word_of_codes(bits, codes);
}

template <class Source>
void pack_from(const PackQuantParams& p, const Source& source, int64_t block) {
  const GemmWeight& w = p.to;
  const QuantFormat& quant = w.quant;
  const int per_word = 32 / quant.bits();
  const bool has_terms = quant.offset != Offset::kNone;
  int64_t rows[kBlock];
  for (int lane = 0; lane < kBlock; ++lane) rows[lane] = w.row_at(block, lane);
  char* to = static_cast<char*>(p.packed) + block * w.block_bytes();
  for (int64_t first = 0, group = 0; first < w.depth; first += quant.group, ++group) {
    const int64_t num_k = std::min<int64_t>(quant.group, w.depth - first);
    for (int64_t k = 0; k < num_k; k += per_word) {
      for (int lane = 0; lane < kBlock; ++lane, to += 4) {
        const uint32_t word = pack_word(quant, source, rows[lane], first + k, num_k - k);
        std::memcpy(to, &word, 4);
      }
    }
    for (int lane = 0; lane < kBlock; ++lane) {
      const int64_t row = rows[lane];
      store_bits(quant.scale_dtype, row < 0 ? 0 : source.scale(row, group), lane, to);
      if (!has_terms) continue;
      const uint32_t term = row < 0 ? 0 : source.term(row, group);
      store_bits(quant.scale_dtype, term, lane, to + quant.line_bytes());
    }
    to += quant.tail_bytes();
  }
}

// c of every code.
template <Codes kCodes>
constexpr auto kNumbers = [] {
  std::array<float, kCodes == Codes::kInt4 ? 16 : 256> numbers{};
  for (uint32_t code = 0; code < numbers.size(); ++code) numbers[code] = code_value(kCodes, code);
  return numbers;
}();

// A group of one output: words are kBlock apart.
template <Codes kCodes>
void unpack_group(const uint32_t* words, int64_t num_k, Offset offset, float scale, float term,
                  float* out, int64_t stride) {
  constexpr int kBits = kCodes == Codes::kInt4 ? 4 : 8, kPerWord = 32 / kBits;
  const auto store = [&](uint32_t word, int64_t k) {
    const float c = kNumbers<kCodes>[word >> code_shift(kBits, k) & ((1u << kBits) - 1)];
    out[k * stride] = quant_value(offset, c, scale, term);
  };
  int64_t k = 0;
  for (; k + kPerWord <= num_k; k += kPerWord, words += kBlock) {
    for (int i = 0; i < kPerWord; ++i) store(*words, k + i);
  }
  for (; k < num_k; ++k) store(*words, k);
}

}  // namespace

void pack_quant_block(const PackQuantParams& p, int64_t block) {
  with_source(p, [&](const auto& source) { pack_from(p, source, block); });
}

void unpack_quant_block(const UnpackParams& p, int64_t block) {
  const GemmWeight& w = p.packed;
  const QuantFormat& quant = w.quant;
  const auto unpack = quant.codes == Codes::kInt4   ? &unpack_group<Codes::kInt4>
                      : quant.codes == Codes::kInt8 ? &unpack_group<Codes::kInt8>
                                                    : &unpack_group<Codes::kF8E4M3>;
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
      unpack(words + lane, num_k, quant.offset, scale, term, out, p.out.strides[1]);
    }
  }
}

}  // namespace dflash
