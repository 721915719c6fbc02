#include "gemm/cpu/avx512.h"

namespace dflash {
namespace {

// vdpbf16ps is two fmas, the high element first, with denormals taken as zero: the law's order.
struct Avx512Bf16 : Avx512 {
  static constexpr bool kHasDot = true;
  static constexpr int kMaxRows = 8;

  static __m512i set1_word(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  static F dot(F sum, const uint32_t* words, __m512i x) {
    const __m512i w = _mm512_loadu_si512(words);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
};

}  // namespace

constinit const GemmKernels kGemmAvx512Bf16 = kernels_of<Avx512Bf16>();

}  // namespace dflash
