// The main loop over a quantised weight. A block is one stream, read once for every pass over rows:
// codes become numbers in registers, meet the pass's rows there, and what ends a group, its scales
// and offsets, becomes floats where it stands. Included like tile.h.
//
// V has further: number<codes, shift>(words): the numbers whose codes stand at bit `shift` of
// kWidth words, as floats; with the dot, decode<codes, i>(words): the bf16 pairs number i of those
// words; floats(data, dtype): kWidth numbers as floats.
#pragma once

#include "gemm/cpu/tile.h"

namespace dflash {
namespace {

constexpr int64_t kWordBytes = kBlock * 4;  // of a word of codes for each output
constexpr int64_t kPieceK = 512;            // k that passes of rows meet at a time: whole groups

// Bytes of a packed row's elements: zeros fill the last word of codes.
template <class V>
int64_t element_bytes(DType dtype, int64_t depth) {
  return (depth + 7) / 8 * 8 * (has_words<V>(dtype) ? 2 : 4);
}

// k in a word; kNone: decoded codes, as floats.
constexpr int words_k(Codes codes) {
  return codes == Codes::kInt4 ? 8 : codes == Codes::kNone ? 1 : 4;
}

struct QuantArgs {
  const char* groups;      // of a block, from the first that is taken
  const char* rows;        // the same k of the first packed row
  const char* group_sums;  // of the first row, from the same group; row_bytes apart
  int64_t row_bytes;
  int64_t num_k;      // of whole words
  float* sums;        // [kRows][32]
  const char* ahead;  // fetched meanwhile: a word's turn advances by `ahead_step` bytes
  int64_t ahead_step;
  QuantFormat quant;
};

template <class V>
void fetch_ahead(const QuantArgs& t, const char*& ahead) {
  for (int64_t i = 0; i < t.ahead_step; i += 64) V::prefetch(ahead + i);
  ahead += t.ahead_step;
}

// The value of code c = 0, that of q = 8: (8 - z) s, or 8 d + m.
template <class V>
typename V::F offset_of(Offset offset, typename V::F scale, typename V::F term) {
  static constexpr float kEight = 8.0f, kMinusOne = -1.0f;
  const auto eight = V::set1(&kEight);
  if (offset == Offset::kMins) return V::fma(eight, scale, term);
  return V::fma(V::fma(term, V::set1(&kMinusOne), eight), scale, V::zero());
}

// A group's chains enter the sums: scaled, and with the offset's share. `tail` is what follows the
// group's codes.
template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void add_group(const QuantArgs& t, const char* tail, int64_t group,
                                             int first,
                                             const typename V::F (&chains)[kRows][kVecs]) {
  using F = typename V::F;
  const int64_t line = t.quant.line_bytes();
  const char* x = t.group_sums + group * sizeof(float);
  _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
    const int at = first + v * V::kWidth;
    const char* data = tail + line / kBlock * at;
    const F scale = V::floats(data, t.quant.scale_dtype);
    if (t.quant.offset == Offset::kNone) {
      _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
        float* sums = t.sums + r * kBlock + at;
        V::store(sums, V::fma(scale, chains[r][v], V::load(sums)));
      }
      continue;
    }
    const F offset =
        offset_of<V>(t.quant.offset, scale, V::floats(data + line, t.quant.scale_dtype));
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      float* sums = t.sums + r * kBlock + at;
      const F sum = V::fma(scale, chains[r][v], V::load(sums));
      V::store(sums,
               V::fma(offset, V::set1(reinterpret_cast<const float*>(x + r * t.row_bytes)), sum));
    }
  }
}

// For each group and as many outputs at a time as kVecs vectors hold: run(words, k, num_words,
// chains) makes the chains, which are then added.
template <class V, Codes kCodes, int kRows, int kVecs, class Run>
void for_each_group(const QuantArgs& t, const Run& run) {
  const char* codes = t.groups;
  const int64_t tail_bytes = t.quant.tail_bytes();
  for (int64_t k = 0, group = 0; k < t.num_k; k += t.quant.group, ++group) {
    const int64_t num_words = std::min<int64_t>(t.quant.group, t.num_k - k) / words_k(kCodes);
    const char* tail = codes + num_words * kWordBytes;
    for (int first = 0; first < kBlock; first += kVecs * V::kWidth) {
      typename V::F chains[kRows][kVecs];
      _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) chains[r][v] = V::zero();
      }
      run(reinterpret_cast<const uint32_t*>(codes) + first, k, num_words, chains);
      add_group<V>(t, tail, group, first, chains);
    }
    codes = tail + tail_bytes;
  }
}

// Calls body(std::integral_constant<int, i>{}) for i < kCount.
template <int kCount, class Body>
void for_each_index(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

// The number of k, modulo the k of a word, for kWidth outputs.
template <class V, Codes kCodes, int kK>
typename V::F number_at(const uint32_t* words) {
  if constexpr (kCodes == Codes::kNone) {
    return V::load(reinterpret_cast<const float*>(words));
  } else {
    return V::template number<kCodes, code_shift(32 / words_k(kCodes), kK)>(words);
  }
}

// kDot: rows are words of pairs, else floats.
template <class V, Codes kCodes, bool kDot, int kRows, int kVecs>
void quant_tile(const QuantArgs& args) {
  using F = typename V::F;
  constexpr int kWordK = words_k(kCodes), kElement = kDot ? 2 : 4;
  const QuantArgs t = args;  // stores of sums cannot change a copy
  const char* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = t.rows + r * t.row_bytes;
  const char* ahead = t.ahead;
  const auto run = [&](const uint32_t* words, int64_t k, int64_t num_words,
                       F(&chains)[kRows][kVecs]) {
    const int64_t last = k * kElement + num_words * kWordK * kElement;
    for (int64_t x = k * kElement; x < last; words += kBlock, x += kWordK * kElement) {
      fetch_ahead<V>(t, ahead);
      if constexpr (kDot) {
        for_each_index<kWordK / 2>([&](auto pair) {
          decltype(V::load_words(words)) w[kVecs];
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            w[v] = V::template decode<kCodes, pair()>(words + v * V::kWidth);
          }
          _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
            const auto pair_of_x =
                V::set1_word(reinterpret_cast<const uint32_t*>(rows[r] + x) + pair());
            _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
              chains[r][v] = V::dot(chains[r][v], w[v], pair_of_x);
            }
          }
        });
      } else {
        for_each_index<kWordK>([&](auto k_of_word) {
          F w[kVecs];
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            w[v] = number_at<V, kCodes, k_of_word()>(words + v * V::kWidth);
          }
          _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
            const F number_of_x =
                V::set1(reinterpret_cast<const float*>(rows[r] + x) + k_of_word());
            _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
              chains[r][v] = V::fma(w[v], number_of_x, chains[r][v]);
            }
          }
        });
      }
    }
  };
  for_each_group<V, kCodes, kRows, kVecs>(t, run);
}

// A piece of a block with floats for codes: the same stream, but longer.
template <class V, Codes kCodes>
void decode_piece(const QuantFormat& quant, const char* data, int64_t num_k, char* decoded) {
  constexpr int kWordK = words_k(kCodes);
  for (int64_t k = 0; k < num_k; k += quant.group) {
    const int64_t num_words = std::min<int64_t>(quant.group, num_k - k) / kWordK;
    for (int64_t i = 0; i < num_words; ++i, data += kWordBytes) {
      for_each_index<kWordK>([&](auto k_of_word) {
        for (int first = 0; first < kBlock; first += V::kWidth) {
          const auto* words = reinterpret_cast<const uint32_t*>(data) + first;
          V::store(reinterpret_cast<float*>(decoded) + first,
                   number_at<V, kCodes, k_of_word()>(words));
        }
        decoded += kWordBytes;
      });
    }
    std::copy_n(data, quant.tail_bytes(), decoded);
    data += quant.tail_bytes(), decoded += quant.tail_bytes();
  }
}

// How rows meet a block.
struct Passes {
  int64_t max_rows;          // of a pass
  int64_t piece_k;           // that passes meet before the next
  int (*vecs_of)(int rows);  // vectors of outputs at a time
  bool is_decoded;           // once for all passes, which then last far longer than its reading
};

// Calls run(args, k, row, count) for passes of rows over pieces of a block. Several passes meet a
// piece, as `prepare` makes it, while it is in the nearest cache, and share the fetching of the
// next. One pass of many rows fetches a little ahead of itself; of few, the hardware does it best.
template <class V, class Prepare, class Run>
void for_each_piece(const GemmWeight& w, int64_t block, int64_t num_rows, float* sums,
                    const Passes& form, const Prepare& prepare, const Run& run) {
  constexpr int64_t kFewRows = 4, kAhead = 4096;
  const QuantFormat& quant = w.quant;
  const char* data = static_cast<const char*>(w.data) + block * w.block_bytes();
  for (int64_t k = 0; k < w.depth; k += form.piece_k) {
    const int64_t words = quant.num_words(std::min(form.piece_k, w.depth - k));
    const int64_t num_k = words * (32 / quant.bits()), bytes = quant.block_bytes(num_k);
    const char* groups = prepare(data, num_k);
    const auto pass = [&](int64_t index, int64_t passes, int64_t row, int64_t count) {
      const int64_t steps = words * (kBlock / V::kWidth / form.vecs_of(static_cast<int>(count)));
      const bool fetches = num_rows > kFewRows && !form.is_decoded;
      const int64_t step = fetches ? bytes / (steps * passes) : 0;
      const char* ahead = passes == 1 ? data + kAhead : data + bytes + index * steps * step;
      run(QuantArgs{groups, nullptr, nullptr, 0, num_k, sums + row * kBlock, ahead, step, quant}, k,
          row, count);
    };
    for_each_pass(num_rows, form.max_rows, pass);
    data += bytes;
  }
}

template <class V, Codes kCodes, bool kDot, size_t... kRowsMinus1>
constexpr std::array<void (*)(const QuantArgs&), sizeof...(kRowsMinus1)> quant_tiles(
    std::index_sequence<kRowsMinus1...>) {
  return {quant_tile<V, kCodes, kDot, kRowsMinus1 + 1, V::vecs(kRowsMinus1 + 1)>...};
}

template <class V, Codes kCodes, bool kDot>
__attribute__((noinline)) void quant_sums(const GemmWeight& w, int64_t block,
                                          const PackedRows& rows, int64_t first_row,
                                          int64_t num_rows, float* sums) {
  constexpr bool kIsBusy = !kDot && kCodes != Codes::kInt4;  // what decodes takes registers
  constexpr int kMaxRows = kIsBusy ? V::kMaxBusyRows : V::kMaxRows;
  static constexpr auto kTiles = quant_tiles<V, kCodes, kDot>(std::make_index_sequence<kMaxRows>());
  const int64_t elements = element_bytes<V>(w.dtype, w.depth), element = kDot ? 2 : 4;
  const auto run_with = [&](const auto& tiles) {
    return [&](QuantArgs t, int64_t k, int64_t row, int64_t count) {
      const char* x = rows.data + (first_row + row) * rows.row_bytes;
      t.rows = x + k * element;
      t.group_sums = x + elements + k / w.quant.group * sizeof(float);
      t.row_bytes = rows.row_bytes;
      tiles[count - 1](t);
    };
  };
  if constexpr (!kDot) {  // many rows are worth decoding once, sooner where that costs more
    constexpr int kDirectPasses = kCodes == Codes::kF8E4M3 ? 1 : 2;
    if (num_rows > kDirectPasses * kMaxRows) {
      constexpr int64_t kDecodedK = 128, kMaxTail = 256;
      static constexpr auto kDecodedTiles =
          quant_tiles<V, Codes::kNone, false>(std::make_index_sequence<V::kMaxRows>());
      alignas(64) char decoded[kPieceK * kWordBytes + kDecodedK / 32 * kMaxTail];
      const auto decode = [&](const char* data, int64_t num_k) {
        decode_piece<V, kCodes>(w.quant, data, num_k, decoded);
        return decoded;
      };
      const int64_t piece_k = std::max<int64_t>(kDecodedK, w.quant.group);
      const Passes form{V::kMaxRows, piece_k, V::vecs, true};
      return for_each_piece<V>(w, block, num_rows, sums, form, decode, run_with(kDecodedTiles));
    }
  }
  const auto as_it_is = [](const char* data, int64_t) { return data; };
  const Passes form{kMaxRows, num_rows <= kMaxRows ? w.depth : kPieceK, V::vecs, false};
  for_each_piece<V>(w, block, num_rows, sums, form, as_it_is, run_with(kTiles));
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

}  // namespace
}  // namespace dflash
