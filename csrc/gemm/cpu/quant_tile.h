// The main loop over a quantised weight: a group's codes become bf16 pairs, exactly, which meet all
// rows as those of a bf16 weight do. Included like tile.h.
//
// V has further: decode<codes, i>(words): the bf16 pairs number i of kWidth words of codes, and
// store_words for them; floats(data, dtype): kWidth numbers as floats.
#pragma once

#include <cmath>

#include "gemm/cpu/tile.h"

namespace dflash {
namespace {

constexpr int64_t kMaxGroup = kGemmChunk;

// Bytes of a packed row's elements; sums of groups follow.
template <class V>
int64_t element_bytes(DType dtype, int64_t depth) {
  return (depth + 1) / 2 * (has_words<V>(dtype) ? 4 : 8);
}

// A group's chain enters the sum: scaled, and with the offset's share.
template <class V>
struct AddGroup {
  static void add(const TileArgs& t, typename V::F chain, int row, int first) {
    float* sums = t.sums + row * kBlock + first;
    typename V::F sum = V::fma(V::load(t.scales + first), chain, V::load(sums));
    if (t.offsets != nullptr) {
      const auto* x = reinterpret_cast<const float*>(t.group_sums + row * t.row_bytes);
      sum = V::fma(V::load(t.offsets + first), V::set1(x), sum);
    }
    V::store(sums, sum);
  }
};

template <class V, Codes kCodes, int... kPair>
void decode_group(const char* codes, int64_t num_words, uint32_t* pairs,
                  std::integer_sequence<int, kPair...>) {
  const auto* words = reinterpret_cast<const uint32_t*>(codes);
  for (int64_t i = 0; i < num_words; ++i, words += kBlock, pairs += sizeof...(kPair) * kBlock) {
    for (int first = 0; first < kBlock; first += V::kWidth) {
      (V::store_words(pairs + kPair * kBlock + first,
                      V::template decode<kCodes, kPair>(words + first)),
       ...);
    }
  }
}

template <class V, bool kDot, size_t... kRowsMinus1>
constexpr std::array<TileFunction, V::kMaxRows> group_tiles(std::index_sequence<kRowsMinus1...>) {
  return {
      pair_tile<V, DType::kBF16, kDot, AddGroup<V>, kRowsMinus1 + 1, V::vecs(kRowsMinus1 + 1)>...};
}

// A group's offset: the value of code 0, of which every other differs by c * s.
float offset_value(Offset offset, float scale, float term) {
  switch (offset) {
    case Offset::kZeros: return (8.0f - term) * scale;
    case Offset::kMins: return std::fma(8.0f, scale, term);
    default: return 0.0f;
  }
}

// Scales and offsets of a group, as floats.
template <class V>
void load_scales(const QuantFormat& quant, const char* data, float* scales, float* offsets) {
  const int64_t bytes = quant.line_bytes() / kBlock;
  for (int first = 0; first < kBlock; first += V::kWidth) {
    V::store(scales + first, V::floats(data + first * bytes, quant.scale_dtype));
  }
  if (quant.offset == Offset::kNone) return;
  data += quant.line_bytes();
  for (int first = 0; first < kBlock; first += V::kWidth) {
    V::store(offsets + first, V::floats(data + first * bytes, quant.scale_dtype));
  }
  for (int i = 0; i < kBlock; ++i) offsets[i] = offset_value(quant.offset, scales[i], offsets[i]);
}

template <class V, Codes kCodes, bool kDot>
__attribute__((noinline)) void quant_sums(const GemmWeight& w, int64_t block,
                                          const PackedRows& rows, int64_t first_row,
                                          int64_t num_rows, float* sums) {
  static constexpr auto kTiles = group_tiles<V, kDot>(std::make_index_sequence<V::kMaxRows>());
  using Pairs = std::make_integer_sequence<int, kCodes == Codes::kInt4 ? 4 : 2>;  // of a word
  const QuantFormat& quant = w.quant;
  alignas(64) uint32_t pairs[kMaxGroup / 2 * kBlock];
  alignas(64) float scales[kBlock], offsets[kBlock];
  const bool has_offsets = quant.offset != Offset::kNone;
  const int64_t elements = element_bytes<V>(w.dtype, w.depth), element = kDot ? 2 : 4;
  const char* group = static_cast<const char*>(w.data) + block * w.block_bytes();
  const char* first = rows.data + first_row * rows.row_bytes;
  std::fill_n(sums, num_rows * kBlock, 0.0f);
  for (int64_t k = 0, g = 0; k < w.depth; k += quant.group, ++g) {
    const int64_t num_k = std::min<int64_t>(quant.group, w.depth - k);
    const int64_t bytes = quant.group_bytes(num_k), num_pairs = (num_k + 1) / 2;
    decode_group<V, kCodes>(group, quant.num_words(num_k), pairs, Pairs{});
    load_scales<V>(quant, group + quant.code_bytes(num_k), scales, offsets);
    for_each_pass<V>(num_rows, [&](int64_t pass, int64_t passes, int64_t row, int64_t count) {
      // Passes share the fetching of the next group; one alone leaves it to the hardware.
      const int64_t step = passes == 1 ? 0 : bytes / (passes * num_pairs);
      const char* x = first + row * rows.row_bytes;
      kTiles[count - 1]({reinterpret_cast<const char*>(pairs), x + k * element, rows.row_bytes,
                         num_k, sums + row * kBlock, false, group + bytes + pass * step * num_pairs,
                         step, scales, has_offsets ? offsets : nullptr,
                         x + elements + g * sizeof(float)});
    });
    group += bytes;
  }
}

template <class V, Codes kCodes>
void quant_sums_of(const GemmWeight& w, int64_t block, const PackedRows& rows, int64_t first_row,
                   int64_t num_rows, float* sums) {
  if constexpr (V::kHasDot) {
    if (has_words<V>(w.dtype)) {
      return quant_sums<V, kCodes, true>(w, block, rows, first_row, num_rows, sums);
    }
  }
  quant_sums<V, kCodes, false>(w, block, rows, first_row, num_rows, sums);
}

template <class V>
void block_sums(const GemmWeight& w, int64_t block, const PackedRows& rows, int64_t first_row,
                int64_t num_rows, float* sums) {
  if (w.depth == 0) std::fill_n(sums, num_rows * kBlock, 0.0f);
  const FlushDenormals flush;
  switch (w.quant.codes) {
    case Codes::kInt4:
      return quant_sums_of<V, Codes::kInt4>(w, block, rows, first_row, num_rows, sums);
    case Codes::kInt8:
      return quant_sums_of<V, Codes::kInt8>(w, block, rows, first_row, num_rows, sums);
    case Codes::kF8E4M3:
      return quant_sums_of<V, Codes::kF8E4M3>(w, block, rows, first_row, num_rows, sums);
    case Codes::kNone: break;
  }
  switch (w.dtype) {
    case DType::kBF16:
      return typed_sums<V, DType::kBF16>(w, block, rows, first_row, num_rows, sums);
    case DType::kF16: return typed_sums<V, DType::kF16>(w, block, rows, first_row, num_rows, sums);
    default: return typed_sums<V, DType::kF32>(w, block, rows, first_row, num_rows, sums);
  }
}

}  // namespace
}  // namespace dflash
