// Vectors of AVX-512-BF16 and VNNI, as tile.h wants them.
#pragma once

#include "gemm/cpu/avx512.h"

namespace dflash {
namespace {

// vdpbf16ps is two fmas, the high element first, with denormals taken as zero: the law's order.
struct Avx512Bf16 : Avx512 {
  static constexpr bool kHasDot = true;

  static __m512i set1_word(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  static __m512i load_words(const uint32_t* words) { return _mm512_loadu_si512(words); }
  static F dot(F sum, __m512i w, __m512i x) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }

  // Sums of four products with unsigned codes, in 32 bits.
  template <Codes kCodes>
  static __m512i int8_codes(const uint32_t* words, int part) {
    const __m512i codes = Avx512::int8_codes<kCodes>(words, part);
    if constexpr (kCodes == Codes::kInt4) return codes;
    return _mm512_xor_si512(codes, _mm512_set1_epi32(0x80808080));
  }
  template <Codes kCodes>
  static Acc int8_dot(Acc acc, __m512i codes, const uint32_t* x) {
    return _mm512_dpbusd_epi32(acc, codes, set1_bytes(x));
  }
  template <Codes kCodes>
  static F int8_sum(Acc acc, const int32_t* bias) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(acc, _mm512_set1_epi32(*bias)));
  }
};

}  // namespace
}  // namespace dflash
