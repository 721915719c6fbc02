// Vectors of AVX-512F, as tile.h wants them.
#pragma once

#include <immintrin.h>

#include "gemm/cpu/rows.h"

namespace dflash {
namespace {

// bf16 bits of c for every 4-bit code, twice over: a table may be indexed with one stray bit.
constexpr auto kInt4Pairs = [] {
  std::array<uint16_t, 32> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    table[i] = std::bit_cast<uint32_t>(code_value(Codes::kInt4, i % 16)) >> 16;
  }
  return table;
}();

constexpr auto kInt4Floats = [] {
  std::array<float, 16> table{};
  for (uint32_t i = 0; i < table.size(); ++i) table[i] = code_value(Codes::kInt4, i);
  return table;
}();

// bf16 bits of the eight smallest fp8 numbers.
constexpr auto kTinyF8Table = [] {
  std::array<uint16_t, 32> table{};
  for (uint32_t i = 0; i < 8; ++i) {
    table[i] = std::bit_cast<uint32_t>(code_value(Codes::kF8E4M3, i)) >> 16;
  }
  return table;
}();

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16, kMaxRows = 8, kMaxBusyRows = 8;
  static constexpr bool kHasDot = false;
  static constexpr int vecs(int) { return 2; }

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static F set1(const float* p) { return _mm512_set1_ps(*p); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  static F halves(__m512i values) {  // of fp16, in the low half of each word
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(values));
  }
  template <DType kDType>
  static F high(const uint32_t* words) {
    const __m512i w = _mm512_loadu_si512(words);
    if constexpr (kDType == DType::kF16) return halves(_mm512_srli_epi32(w, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(0xffff0000)));
  }
  template <DType kDType>
  static F low(const uint32_t* words) {
    const __m512i w = _mm512_loadu_si512(words);
    if constexpr (kDType == DType::kF16) return halves(w);
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  }

  template <Codes kCodes, int kPair>
  static __m512i decode(const uint32_t* words) {
    const __m512i w = _mm512_loadu_si512(words);
    if constexpr (kCodes == Codes::kInt4) {  // the table reads five bits: one stray bit is left
      return _mm512_permutexvar_epi16(_mm512_srli_epi32(w, 4 * kPair),
                                      _mm512_loadu_si512(kInt4Pairs.data()));
    } else if constexpr (kCodes == Codes::kInt8) {
      const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(w, 8 - 8 * kPair), 24);
      const __m512i odd = _mm512_srai_epi32(_mm512_slli_epi32(w, 24 - 8 * kPair), 24);
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(odd)), 16);
      return _mm512_or_si512(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), low);
    } else {
      const __m512i magnitude =
          _mm512_and_si512(_mm512_srli_epi32(w, 8 * kPair), _mm512_set1_epi16(0x7f));
      const __m512i sign = _mm512_and_si512(_mm512_slli_epi32(w, 8 - 8 * kPair),
                                            _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
      // The exponent's bias goes from 7 to 127; denormals n * 2^-9 and NaN come from elsewhere.
      const __m512i normal =
          _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
      const __mmask32 tiny = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8));
      const __mmask32 nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
      const __m512i bits = _mm512_mask_permutexvar_epi16(normal, tiny, magnitude,
                                                         _mm512_loadu_si512(kTinyF8Table.data()));
      return _mm512_or_si512(_mm512_mask_mov_epi16(bits, nan, _mm512_set1_epi16(0x7fc0)), sign);
    }
  }

  template <Codes kCodes, int kShift>
  static F number(const uint32_t* words) {
    const __m512i w = _mm512_loadu_si512(words);
    if constexpr (kCodes == Codes::kInt4) {  // the table reads four bits
      return _mm512_permutexvar_ps(_mm512_srli_epi32(w, kShift), load(kInt4Floats.data()));
    } else if constexpr (kCodes == Codes::kInt8) {
      return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 24 - kShift), 24));
    } else {
      const __m512i pairs = decode<kCodes, kShift % 16 / 8>(words);
      return _mm512_castsi512_ps(kShift < 16
                                     ? _mm512_slli_epi32(pairs, 16)
                                     : _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000)));
    }
  }

  // Of 4 bits, sums of pairs in 16 bits: eight products of a block fit. Of 8 bits, in 32.
  using Acc = __m512i;
  static Acc int8_zero() { return _mm512_setzero_si512(); }
  template <Codes kCodes>
  static __m512i int8_codes(const uint32_t* words, int part) {
    const __m512i w = _mm512_loadu_si512(words);
    if constexpr (kCodes == Codes::kInt8) return w;
    return _mm512_and_si512(part == 0 ? w : _mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
  }
  static __m512i set1_bytes(const uint32_t* x) { return _mm512_set1_epi32(static_cast<int>(*x)); }
  static __m512i sums_of_pairs(__m512i pairs) {
    return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
  }
  template <Codes kCodes>
  static Acc int8_dot(Acc acc, __m512i codes, const uint32_t* x) {
    const __m512i bytes = set1_bytes(x);
    if constexpr (kCodes == Codes::kInt4) {
      return _mm512_add_epi16(acc, _mm512_maddubs_epi16(codes, bytes));
    } else {  // the code's sign goes to x: 2 * 128 * 127 fits in 16 bits
      const __m512i signed_x =
          _mm512_mask_sub_epi8(bytes, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), bytes);
      const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(codes), signed_x);
      return _mm512_add_epi32(acc, sums_of_pairs(pairs));
    }
  }
  template <Codes kCodes>
  static F int8_sum(Acc acc, const int32_t* bias) {
    if constexpr (kCodes == Codes::kInt8) return _mm512_cvtepi32_ps(acc);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(sums_of_pairs(acc), _mm512_set1_epi32(*bias)));
  }
  static F floats(const char* data, DType dtype) {
    if (dtype == DType::kF32) return _mm512_loadu_ps(data);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
    if (dtype == DType::kF16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
};

}  // namespace
}  // namespace dflash
