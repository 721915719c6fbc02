// Sixteen floats of AVX-512, for block_table.h. In an unnamed namespace: see common/dtype.h.
#pragma once

#include <immintrin.h>

#include "common/dtype.h"

namespace dflash {
namespace {

struct Avx512 {
  using Reg = __m512;
  static constexpr int kWidth = 16;

  static Reg load(const float* x) { return _mm512_loadu_ps(x); }
  static Reg widen(const float* x) { return load(x); }
  static __m256i load_halves(const void* x) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(x));
  }
  static __m128i load_bytes(const void* x) {
    return _mm_loadu_si128(static_cast<const __m128i*>(x));
  }
  static Reg widen(const BF16* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(x)), 16));
  }
  static Reg widen(const F16* x) { return _mm512_cvtph_ps(load_halves(x)); }
  static Reg widen(const int8_t* x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(x)));
  }
  static Reg widen(const F8E5M2* x) {  // the upper half of a float16
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_bytes(x)), 8));
  }
  // As a float16 the bits are worth 2^-8 of the value; all ones, which is NaN, would be 480.
  static Reg widen(const F8E4M3* x) {
    const __m256i bits = _mm256_cvtepi8_epi16(load_bytes(x));  // the sign in all upper bits
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7f));
    const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi16(static_cast<short>(0x8000)));
    const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign),
                                         _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
  }
  static void store(float* x, Reg r) { _mm512_storeu_ps(x, r); }
  static Reg broadcast(float x) { return _mm512_set1_ps(x); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }  // as max_f32
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }

  static Reg low_half(Reg words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(words), 16));
  }
  static Reg high_half(Reg words) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(words), _mm512_set1_epi32(-0x10000)));
  }
  static Reg round_to_bf16(Reg x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
    return high_half(_mm512_castsi512_ps(_mm512_add_epi32(bits, half)));
  }
  static void interleave(const BF16* even, const BF16* odd, float* words) {
    const __m512i low = _mm512_cvtepu16_epi32(load_halves(even));
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(odd)), 16);
    store(words, _mm512_castsi512_ps(_mm512_or_si512(low, high)));
  }
  // 2^n, if x is n + 1.5 * 2^23.
  static Reg power_of_two(Reg x) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(x), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000)));
  }
  static Reg zero_below(Reg value, Reg x, Reg limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  }
  static Reg choose(const int32_t* mask, Reg yes, Reg no) {
    return _mm512_mask_mov_ps(no, _mm512_movepi32_mask(_mm512_loadu_si512(mask)), yes);
  }

  static void transpose(Reg (&tile)[kWidth]) {
    Reg pairs[kWidth], quads[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(tile[i], tile[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(tile[i], tile[i + 1]);
    }
    for (int i = 0; i < kWidth; i += 4) {
      for (int j = 0; j < 2; ++j) {  // columns 2j, 2j + 1 (mod 4) of rows i .. i + 3
        quads[i + 2 * j] = _mm512_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
        quads[i + 2 * j + 1] = _mm512_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
      }
    }
    // quads[4g + c] holds column c + 4s of rows 4g .. 4g + 3 in its 128-bit part s.
    for (int c = 0; c < 4; ++c) {
      const Reg even_01 = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0x88);
      const Reg odd_01 = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0xdd);
      const Reg even_23 = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0x88);
      const Reg odd_23 = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0xdd);
      tile[c] = _mm512_shuffle_f32x4(even_01, even_23, 0x88);
      tile[c + 4] = _mm512_shuffle_f32x4(odd_01, odd_23, 0x88);
      tile[c + 8] = _mm512_shuffle_f32x4(even_01, even_23, 0xdd);
      tile[c + 12] = _mm512_shuffle_f32x4(odd_01, odd_23, 0xdd);
    }
  }
};

}  // namespace
}  // namespace dflash
