#include <immintrin.h>

#include "sample/cpu/noise_lanes.h"
#include "sample/cpu/span_loops.h"

namespace dflash {
namespace {

struct Avx2Lanes {
  using Reg = __m256i;
  static constexpr int kLanes = 4;

  static Reg broadcast(uint32_t x) { return _mm256_set1_epi64x(x); }
  static Reg indices() { return _mm256_set_epi64x(3, 2, 1, 0); }
  static Reg add(Reg a, Reg b) { return _mm256_add_epi64(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm256_mul_epu32(a, b); }
  static Reg upper_half(Reg a) { return _mm256_srli_epi64(a, 32); }
  static Reg exclusive_or(Reg a, Reg b, Reg c) {
    return _mm256_xor_si256(_mm256_xor_si256(b, c), a);
  }
  static void store(Reg c0, Reg c1, Reg c2, Reg c3, uint32_t* words) {
    const Reg low = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa);
    const Reg high = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
    const Reg even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    auto* out = reinterpret_cast<__m256i*>(words);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
};

}  // namespace

constinit const SpanKernels kSpanAvx2 = span_loops<NoiseLanes<Avx2Lanes>>();

}  // namespace dflash
