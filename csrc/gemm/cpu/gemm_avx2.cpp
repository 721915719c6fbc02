#include <immintrin.h>

#include "gemm/cpu/rows.h"

namespace dflash {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8, kMaxRows = 4;
  static constexpr bool kHasDot = false;
  // Of 16 registers the sums take at most 8; what is left holds the weights and one x.
  static constexpr int vecs(int rows) { return rows <= 2 ? 4 : 2; }

  static F zero() { return _mm256_setzero_ps(); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static F set1(const float* p) { return _mm256_broadcast_ss(p); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  static __m256i load_words(const uint32_t* words) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  }
  static F halves(__m256i values) {  // of fp16, in the low half of each word
    const __m256i packed = _mm256_packus_epi32(values, values);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  template <DType kDType>
  static F high(const uint32_t* words) {
    const __m256i w = load_words(words);
    if constexpr (kDType == DType::kF16) return halves(_mm256_srli_epi32(w, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(0xffff0000)));
  }
  template <DType kDType>
  static F low(const uint32_t* words) {
    const __m256i w = load_words(words);
    if constexpr (kDType == DType::kF16) {
      return halves(_mm256_and_si256(w, _mm256_set1_epi32(0xffff)));
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
};

}  // namespace

constinit const GemmKernels kGemmAvx2 = kernels_of<Avx2>();

}  // namespace dflash
