#include <immintrin.h>

#include "attention/cpu/block_table.h"

namespace dflash {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int kWidth = 8;

  static Reg load(const float* x) { return _mm256_loadu_ps(x); }
  static Reg widen(const float* x) { return load(x); }
  static Reg widen(const BF16* x) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Reg widen(const F16* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  static __m128i load_bytes(const void* x) {
    return _mm_loadl_epi64(static_cast<const __m128i*>(x));
  }
  static Reg widen(const int8_t* x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(x)));
  }
  static Reg widen(const F8E5M2* x) {  // the upper half of a float16
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load_bytes(x)), 8));
  }
  // As a float16 the bits are worth 2^-8 of the value; all ones, which is NaN, would be 480.
  static Reg widen(const F8E4M3* x) {
    const __m128i bits = _mm_cvtepi8_epi16(load_bytes(x));  // the sign in all upper bits
    const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi16(0x7f));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_and_si128(bits, _mm_set1_epi16(static_cast<short>(0x8000)));
    const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign),
                                      _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  }
  static void store(float* x, Reg r) { _mm256_storeu_ps(x, r); }
  static Reg broadcast(float x) { return _mm256_set1_ps(x); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }  // as max_f32
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }

  static Reg low_half(Reg words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words), 16));
  }
  static Reg high_half(Reg words) {
    return _mm256_and_ps(words, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)));
  }
  static Reg round_to_bf16(Reg x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
    return high_half(_mm256_castsi256_ps(_mm256_add_epi32(bits, half)));
  }
  static void interleave(const BF16* even, const BF16* odd, float* words) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd));
    const __m256i low = _mm256_unpacklo_epi16(a, b);  // columns 0 .. 3, 8 .. 11
    const __m256i high = _mm256_unpackhi_epi16(a, b);
    store(words, _mm256_castsi256_ps(_mm256_permute2x128_si256(low, high, 0x20)));
    store(words + 8, _mm256_castsi256_ps(_mm256_permute2x128_si256(low, high, 0x31)));
  }
  // 2^n, if x is n + 1.5 * 2^23.
  static Reg power_of_two(Reg x) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(x), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)));
  }
  static Reg zero_below(Reg value, Reg x, Reg limit) {
    return _mm256_and_ps(value, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ));
  }
  static Reg choose(const int32_t* mask, Reg yes, Reg no) {
    return _mm256_blendv_ps(no, yes, load(reinterpret_cast<const float*>(mask)));
  }

  static void transpose(Reg (&tile)[kWidth]) {
    Reg pairs[kWidth], quads[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(tile[i], tile[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(tile[i], tile[i + 1]);
    }
    for (int i = 0; i < kWidth; i += 4) {
      for (int j = 0; j < 2; ++j) {  // columns 2j, 2j + 1 (and 4 more) of rows i .. i + 3
        quads[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
        quads[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
      }
    }
    for (int i = 0; i < 4; ++i) {
      tile[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
      tile[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
  }
};

}  // namespace

const BlockOps& block_ops_avx2() {
  // 10 chains are what two units of latency 5 need; with 2 values and 2 halves of them, and a
  // factor, they fit in 16 registers.
  static constexpr BlockOps kOps = block_ops<Avx2, Floats<Avx2, 6, 2>, Bf16Words<Avx2, 5, 2>>();
  return kOps;
}

}  // namespace dflash
