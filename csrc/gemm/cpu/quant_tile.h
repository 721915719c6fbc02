// The main loop over a quantised weight: a group's codes become bf16 pairs, exactly, which meet all
// rows as those of a bf16 weight do. Included like tile.h.
//
// V has further: decode<codes, i>(words): the bf16 pairs number i of kWidth words of codes, and
// store_words for them; floats(data, dtype): kWidth numbers as floats.
#pragma once

#include "gemm/cpu/tile.h"

namespace dflash {
namespace {

// Bytes of a packed row's elements; sums of groups follow.
template <class V>
int64_t element_bytes(DType dtype, int64_t depth) {
  return (depth + 1) / 2 * (has_words<V>(dtype) ? 4 : 8);
}

// A group's chain enters the sum: scaled, and with the offset's share.
template <class V>
struct AddGroup {
  static void add(const TileArgs& t, typename V::F chain, int64_t group, int row, int first) {
    float* sums = t.sums + row * kBlock + first;
    const int64_t at = group * kBlock + first;
    typename V::F sum = V::fma(V::load(t.scales + at), chain, V::load(sums));
    if (t.offsets != nullptr) {
      const auto* x = reinterpret_cast<const float*>(t.group_sums + row * t.row_bytes) + group;
      sum = V::fma(V::load(t.offsets + at), V::set1(x), sum);
    }
    V::store(sums, sum);
  }
};

// Calls body(std::integral_constant<int, i>{}) for each pair of a word of codes.
template <Codes kCodes, class Body>
void for_each_pair(const Body& body) {
  [&]<int... kPair>(std::integer_sequence<int, kPair...>) {
    (body(std::integral_constant<int, kPair>{}), ...);
  }(std::make_integer_sequence<int, kCodes == Codes::kInt4 ? 4 : 2>{});
}

template <class V, Codes kCodes>
void decode_group(const char* codes, int64_t num_words, uint32_t* pairs) {
  const auto* words = reinterpret_cast<const uint32_t*>(codes);
  for (int64_t i = 0; i < num_words; ++i, words += kBlock) {
    for_each_pair<kCodes>([&](auto pair) {
      for (int first = 0; first < kBlock; first += V::kWidth) {
        V::store_words(pairs + first, V::template decode<kCodes, pair()>(words + first));
      }
      pairs += kBlock;
    });
  }
}

// One pass over codes as they stand, without a stop in memory; they fill their words. Few rows wait
// for memory, and the hardware fetches it best; many fetch a little ahead.
template <class V, Codes kCodes, int kRows>
void direct_tile(const TileArgs& args) {
  constexpr int kVecs = kBlock / V::kWidth, kWordK = kCodes == Codes::kInt4 ? 8 : 4;
  constexpr int64_t kAhead = 4096, kWordBytes = kBlock * 4;
  const TileArgs t = args;  // stores of sums cannot change a copy
  const char* codes = t.weight;
  const char* x = t.rows;
  for (int64_t k = 0, group = 0; k < t.num_k; ++group) {
    typename V::F acc[kRows][kVecs];
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) acc[r][v] = V::zero();
    }
    const char* next_group = codes + t.group_bytes;
    const int64_t last = std::min(k + t.group_k, t.num_k);
    for (; k < last; k += kWordK, x += kWordK * 2, codes += kWordBytes) {
      if constexpr (kRows > 4) {
        V::prefetch(codes + kAhead);
        V::prefetch(codes + kAhead + kWordBytes / 2);
      }
      const auto* words = reinterpret_cast<const uint32_t*>(codes);
      for_each_pair<kCodes>([&](auto pair) {
        decltype(V::load_words(words)) w[kVecs];
        _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
          w[v] = V::template decode<kCodes, pair()>(words + v * V::kWidth);
        }
        _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
          const auto* row = reinterpret_cast<const uint32_t*>(x + r * t.row_bytes);
          const auto pair_of_x = V::set1_word(row + pair());
          _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
            acc[r][v] = V::dot(acc[r][v], w[v], pair_of_x);
          }
        }
      });
    }
    codes = next_group;
    _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
      _Pragma("GCC unroll 16") for (int v = 0; v < kVecs; ++v) {
        AddGroup<V>::add(t, acc[r][v], group, r, v * V::kWidth);
      }
    }
  }
}

template <class V, Codes kCodes, size_t... kRowsMinus1>
constexpr std::array<TileFunction, V::kMaxRows> direct_tiles(std::index_sequence<kRowsMinus1...>) {
  return {direct_tile<V, kCodes, kRowsMinus1 + 1>...};
}

template <class V, bool kDot, size_t... kRowsMinus1>
constexpr std::array<TileFunction, V::kMaxRows> group_tiles(std::index_sequence<kRowsMinus1...>) {
  return {
      pair_tile<V, DType::kBF16, kDot, AddGroup<V>, kRowsMinus1 + 1, V::vecs(kRowsMinus1 + 1)>...};
}

// A group's scales and offsets, as floats; whether there are offsets. An offset is the value where
// c is 0, that of q = 8.
template <class V>
bool load_scales(const QuantFormat& quant, const char* data, float* scales, float* offsets) {
  static constexpr float kEight = 8.0f, kMinusOne = -1.0f;
  const int64_t bytes = quant.line_bytes() / kBlock;
  for (int first = 0; first < kBlock; first += V::kWidth) {
    const char* at = data + first * bytes;
    const auto scale = V::floats(at, quant.scale_dtype);
    V::store(scales + first, scale);
    if (quant.offset == Offset::kNone) continue;
    const auto term = V::floats(at + quant.line_bytes(), quant.scale_dtype);
    const auto eight = V::set1(&kEight);
    if (quant.offset == Offset::kMins) {
      V::store(offsets + first, V::fma(eight, scale, term));
    } else {
      const auto from_zero = V::fma(term, V::set1(&kMinusOne), eight);
      V::store(offsets + first, V::fma(from_zero, scale, V::zero()));
    }
  }
  return quant.offset != Offset::kNone;
}

// Groups that a tile takes in one call: several where they are small.
struct GroupRun {
  static constexpr int64_t kMaxK = kGemmChunk, kMaxGroups = 8;

  const char* data;  // the first group
  int64_t first_k;
  int64_t num_k;
  int64_t first_group;
  int64_t bytes;
  alignas(64) float scales[kMaxGroups * kBlock];
  alignas(64) float offset_terms[kMaxGroups * kBlock];
  const float* offsets;  // offset_terms, or null if there are none
};

// Calls body(run) for the groups of a block, and before it decode(codes, num_k, k) for each of the
// run's, k counting from its first.
template <class V, class Decode, class Body>
void for_each_run(const GemmWeight& w, int64_t block, const Decode& decode, const Body& body) {
  const QuantFormat& quant = w.quant;
  const int64_t run_k = std::max<int64_t>(quant.group, GroupRun::kMaxGroups * 32);
  GroupRun run;
  run.data = static_cast<const char*>(w.data) + block * w.block_bytes();
  run.first_group = 0;
  for (run.first_k = 0; run.first_k < w.depth; run.first_k += run_k) {
    run.num_k = std::min(run_k, w.depth - run.first_k);
    const char* data = run.data;
    int64_t group = 0;
    for (int64_t k = 0; k < run.num_k; k += quant.group, ++group) {
      const int64_t num_k = std::min<int64_t>(quant.group, run.num_k - k);
      decode(data, num_k, k);
      run.offsets = load_scales<V>(quant, data + quant.code_bytes(num_k),
                                   run.scales + group * kBlock, run.offset_terms + group * kBlock)
                        ? run.offset_terms
                        : nullptr;
      data += quant.group_bytes(num_k);
    }
    run.bytes = data - run.data;
    body(run);
    run.data = data;
    run.first_group += group;
  }
}

// Passes share the fetching of the next run; one alone leaves it to the hardware.
struct NextRun {
  const char* first;
  int64_t step;  // bytes per step of a tile's loop

  NextRun(const GroupRun& run, int64_t pass, int64_t passes, int64_t num_steps)
      : step(passes == 1 ? 0 : run.bytes / (passes * num_steps)) {
    first = run.data + run.bytes + pass * step * num_steps;
  }
};

template <class V, Codes kCodes, bool kDot>
__attribute__((noinline)) void quant_sums(const GemmWeight& w, int64_t block,
                                          const PackedRows& rows, int64_t first_row,
                                          int64_t num_rows, float* sums) {
  constexpr auto kEachCount = std::make_index_sequence<V::kMaxRows>();
  static constexpr auto kTiles = group_tiles<V, kDot>(kEachCount);
  const TileFunction* tiles = kTiles.data();
  bool is_direct = false;
  if constexpr (kDot) {
    static constexpr auto kDirectTiles = direct_tiles<V, kCodes>(kEachCount);
    is_direct = num_rows <= V::kMaxRows && w.depth % (32 / w.quant.bits()) == 0;
    if (is_direct) tiles = kDirectTiles.data();
  }
  alignas(64) uint32_t pairs[GroupRun::kMaxK / 2 * kBlock];
  const int64_t elements = element_bytes<V>(w.dtype, w.depth), element = kDot ? 2 : 4;
  const char* first = rows.data + first_row * rows.row_bytes;
  const auto decode = [&](const char* codes, int64_t num_k, int64_t k) {
    if (is_direct) return;
    decode_group<V, kCodes>(codes, w.quant.num_words(num_k), pairs + k / 2 * kBlock);
  };
  for_each_run<V>(w, block, decode, [&](const GroupRun& run) {
    const char* weight = is_direct ? run.data : reinterpret_cast<const char*>(pairs);
    for_each_pass<V>(num_rows, [&](int64_t pass, int64_t passes, int64_t row, int64_t count) {
      const NextRun next(run, pass, passes, (run.num_k + 1) / 2);
      const char* x = first + row * rows.row_bytes;
      tiles[count - 1]({weight, x + run.first_k * element, rows.row_bytes, run.num_k,
                        sums + row * kBlock, false, next.first, next.step, w.quant.group,
                        w.quant.group_bytes(w.quant.group), run.scales, run.offsets,
                        x + elements + run.first_group * sizeof(float)});
    });
  });
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
