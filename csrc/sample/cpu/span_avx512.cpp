#include <immintrin.h>

#include "sample/cpu/noise_lanes.h"
#include "sample/cpu/span_loops.h"

namespace dflash {
namespace {

struct Avx512Lanes {
  using Reg = __m512i;
  static constexpr int kLanes = 8;

  static Reg broadcast(uint32_t x) { return _mm512_set1_epi64(x); }
  static Reg indices() { return _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0); }
  static Reg add(Reg a, Reg b) { return _mm512_add_epi64(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm512_mul_epu32(a, b); }
  static Reg upper_half(Reg a) { return _mm512_srli_epi64(a, 32); }
  static Reg exclusive_or(Reg a, Reg b, Reg c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  static void store(Reg c0, Reg c1, Reg c2, Reg c3, uint32_t* words) {
    const Reg low = _mm512_mask_blend_epi32(0xaaaa, c0, _mm512_slli_epi64(c1, 32));
    const Reg high = _mm512_mask_blend_epi32(0xaaaa, c2, _mm512_slli_epi64(c3, 32));
    const Reg even = _mm512_unpacklo_epi64(low, high), odd = _mm512_unpackhi_epi64(low, high);
    const Reg first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const Reg second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(even, first, odd));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(even, second, odd));
  }
};

}  // namespace

constinit const SpanKernels kSpanAvx512 = span_loops<NoiseLanes<Avx512Lanes>>();

}  // namespace dflash
