// Vectors of AVX-512F, as tile.h wants them.
#pragma once

#include <immintrin.h>

#include "gemm/cpu/rows.h"

namespace dflash {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16, kMaxRows = 8;
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
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
};

}  // namespace
}  // namespace dflash
