// The main loop over a weight of integers with rows rounded to int8: integer sums of 32 k, exact,
// then floats. Included like tile.h.
//
// V has further: Acc, integer sums of a block of 32 k for kWidth outputs; int8_zero; and for 4 and
// 8 bits: int8_codes(words, i), part i of four codes of each word; int8_dot(acc, codes, x), which
// adds their products with the four bytes of x; int8_sum(acc, bias), the sums of c * x as floats,
// where `bias` is for those who multiply with unsigned codes.
#pragma once

#include <cmath>

#include "gemm/cpu/quant_tile.h"

namespace dflash {
namespace {

constexpr int64_t kInt8Block = 32;  // k of a row that share a scale

// A packed row: codes, in the order in which those of a word meet them; the scale of each block;
// its sum of codes times -8 (weights of 8 bits: -128), what unsigned codes have too much; the value
// sum of each group.
struct Int8Row {
  int64_t num_blocks;

  explicit Int8Row(int64_t depth) : num_blocks((depth + kInt8Block - 1) / kInt8Block) {}
  int64_t scales() const { return num_blocks * kInt8Block; }  // where they begin, in bytes
  int64_t biases() const { return scales() + num_blocks * 4; }
  int64_t group_sums() const { return biases() + num_blocks * 4; }
};

// The place of k mod 8 among eight bytes, as words have their codes; of 4 bits the low nibbles
// come first, then the high ones.
constexpr int kPlaceOf4Bits[8]{2, 0, 6, 4, 3, 1, 7, 5}, kPlaceOf8Bits[8]{2, 0, 3, 1, 6, 4, 7, 5};

// One block of a row. Ties round to even; a block with infinities or NaN gets the scale NaN.
void pack_int8_block(const float* x, int64_t count, const int* places, char* codes, float& scale,
                     int32_t& sum) {
  float values[kInt8Block] = {};
  std::copy_n(x, count, values);
  float largest = 0.0f, not_finite = 0.0f;
  for (int i = 0; i < kInt8Block; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
    not_finite += values[i] * 0.0f;
  }
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  int8_t rounded[kInt8Block];
  sum = 0;
  for (int i = 0; i < kInt8Block; ++i) {
    const float shifted =
        values[i] * inverse + 12582912.0f;  // 1.5 * 2^23: its last bit is the unit
    rounded[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted));
    sum += rounded[i];
  }
  for (int i = 0; i < kInt8Block; ++i) codes[i / 8 * 8 + places[i % 8]] = rounded[i];
  scale = largest / 127.0f + not_finite;
}

void pack_int8_row(const float* x, int64_t first_k, int64_t count, const RowForm& form,
                   char* packed) {
  const Int8Row row(form.depth);
  const bool is_int4 = form.int8_for == Codes::kInt4;
  const int* places = is_int4 ? kPlaceOf4Bits : kPlaceOf8Bits;
  auto* scales = reinterpret_cast<float*>(packed + row.scales());
  auto* biases = reinterpret_cast<int32_t*>(packed + row.biases());
  auto* group_sums = reinterpret_cast<float*>(packed + row.group_sums());
  for (int64_t i = 0; i < count; i += kInt8Block) {
    const int64_t k = first_k + i, block = k / kInt8Block;
    int32_t sum;
    pack_int8_block(x + i, std::min(kInt8Block, count - i), places, packed + k, scales[block], sum);
    biases[block] = (is_int4 ? -8 : -128) * sum;
    if (form.group == 0) continue;
    float& group_sum = group_sums[k / form.group];
    group_sum =
        std::fma(scales[block], static_cast<float>(sum), k % form.group == 0 ? 0.0f : group_sum);
  }
}

struct Int8Args {
  QuantArgs quant;     // rows: codes
  const char* scales;  // of the first row, from the same k; row_bytes apart
  const char* biases;
};

template <class V, Codes kCodes, int kRows, int kVecs>
void int8_tile(const Int8Args& args) {
  using F = typename V::F;
  constexpr int kParts = kCodes == Codes::kInt4 ? 2 : 1;  // of a word, four codes each
  const Int8Args a = args;
  const QuantArgs& t = a.quant;
  const char* ahead = t.ahead;
  const auto run = [&](const uint32_t* words, int64_t first_k, int64_t num_words,
                       F(&chains)[kRows][kVecs]) {
    for (int64_t k = first_k, word = 0; word < num_words; k += kInt8Block) {
      typename V::Acc acc[kRows][kVecs];
      _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) acc[r][v] = V::int8_zero();
      }
      const int64_t last = std::min(word + kInt8Block / words_k(kCodes), num_words);
      for (const char* x = t.rows + k; word < last; ++word, words += kBlock, x += 4 * kParts) {
        fetch_ahead<V>(t, ahead);
        _Pragma("GCC unroll 2") for (int part = 0; part < kParts; ++part) {
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            const auto codes = V::template int8_codes<kCodes>(words + v * V::kWidth, part);
            _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
              const char* at = x + r * t.row_bytes + part * 4;
              acc[r][v] = V::template int8_dot<kCodes>(acc[r][v], codes,
                                                       reinterpret_cast<const uint32_t*>(at));
            }
          }
        }
      }
      _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
        const int64_t at = r * t.row_bytes + k / kInt8Block * 4;
        const F scale = V::set1(reinterpret_cast<const float*>(a.scales + at));
        const auto* bias = reinterpret_cast<const int32_t*>(a.biases + at);
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
          const F sum = V::template int8_sum<kCodes>(acc[r][v], bias);
          chains[r][v] = V::fma(scale, sum, chains[r][v]);
        }
      }
    }
  };
  for_each_group<V, kCodes, kRows, kVecs>(t, run);
}

// Sums of integers and of floats share the registers: for many rows, a vector at a time.
template <class V>
constexpr int int8_vecs(int rows) {
  return rows > 4 ? 1 : V::vecs(rows);
}

template <class V, Codes kCodes, size_t... kRowsMinus1>
constexpr std::array<void (*)(const Int8Args&), sizeof...(kRowsMinus1)> int8_tiles(
    std::index_sequence<kRowsMinus1...>) {
  return {int8_tile<V, kCodes, kRowsMinus1 + 1, int8_vecs<V>(kRowsMinus1 + 1)>...};
}

template <class V, Codes kCodes>
__attribute__((noinline)) void int8_sums(const GemmWeight& w, int64_t block, const PackedRows& rows,
                                         int64_t first_row, int64_t num_rows, float* sums) {
  constexpr int kMaxRows = V::kMaxBusyRows;
  static constexpr auto kTiles = int8_tiles<V, kCodes>(std::make_index_sequence<kMaxRows>());
  const Int8Row layout(w.depth);
  const auto run = [&](QuantArgs t, int64_t k, int64_t row, int64_t count) {
    const char* x = rows.data + (first_row + row) * rows.row_bytes;
    t.rows = x + k;
    t.group_sums = x + layout.group_sums() + k / w.quant.group * sizeof(float);
    t.row_bytes = rows.row_bytes;
    const int64_t at = k / kInt8Block * 4;
    kTiles[count - 1]({t, x + layout.scales() + at, x + layout.biases() + at});
  };
  const auto as_it_is = [](const char* data, int64_t) { return data; };
  const Passes form{kMaxRows, num_rows <= kMaxRows ? w.depth : kPieceK, int8_vecs<V>, false};
  for_each_piece<V>(w, block, num_rows, sums, form, as_it_is, run);
}

}  // namespace
}  // namespace dflash
