#include <immintrin.h>

#include "gemm/cpu/rows.h"

namespace dflash {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8, kMaxRows = 6, kMaxBusyRows = 4;
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

  static F small_floats(__m256i bits) {  // of fp8, in the low byte of each word
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x80)), 8);
    // As fp16 the bits are the number times 2^-8, denormals too.
    const F value = _mm256_mul_ps(halves(_mm256_or_si256(_mm256_slli_epi32(magnitude, 7), sign)),
                                  _mm256_set1_ps(256.0f));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32(nan, 22)));
  }
  template <Codes kCodes, int kShift>
  static F number(const uint32_t* words) {
    const __m256i w = load_words(words);
    if constexpr (kCodes == Codes::kInt4) {  // 2^n + q has q among its bits, at place 23 - n
      constexpr int kPlace = kShift > 16 ? kShift - 16 : kShift;
      constexpr float kPower = 1 << (23 - kPlace);
      const __m256i placed = kShift > 16 ? _mm256_srli_epi32(w, 16) : w;
      const __m256i code = _mm256_and_si256(placed, _mm256_set1_epi32(15 << kPlace));
      const F sum = _mm256_or_ps(_mm256_castsi256_ps(code), _mm256_set1_ps(kPower));
      return _mm256_sub_ps(sum, _mm256_set1_ps(kPower + 8));
    } else if constexpr (kCodes == Codes::kInt8) {
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 24 - kShift), 24));
    } else {
      return small_floats(_mm256_srli_epi32(w, kShift));
    }
  }

  // Of 4 bits, sums of pairs in 16 bits: eight products of a block fit. Of 8 bits, in 32.
  using Acc = __m256i;
  static Acc int8_zero() { return _mm256_setzero_si256(); }
  template <Codes kCodes>
  static __m256i int8_codes(const uint32_t* words, int part) {
    const __m256i w = load_words(words);
    if constexpr (kCodes == Codes::kInt8) return w;
    return _mm256_and_si256(part == 0 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  }
  static __m256i sums_of_pairs(__m256i pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  template <Codes kCodes>
  static Acc int8_dot(Acc acc, __m256i codes, const uint32_t* x) {
    const __m256i bytes = _mm256_set1_epi32(static_cast<int>(*x));
    if constexpr (kCodes == Codes::kInt4) {
      return _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, bytes));
    } else {  // the code's sign goes to x: 2 * 128 * 127 fits in 16 bits
      const __m256i pairs =
          _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(bytes, codes));
      return _mm256_add_epi32(acc, sums_of_pairs(pairs));
    }
  }
  template <Codes kCodes>
  static F int8_sum(Acc acc, const int32_t* bias) {
    if constexpr (kCodes == Codes::kInt8) return _mm256_cvtepi32_ps(acc);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(sums_of_pairs(acc), _mm256_set1_epi32(*bias)));
  }
  static F floats(const char* data, DType dtype) {
    if (dtype == DType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(data));
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
    if (dtype == DType::kF16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
};

}  // namespace

constinit const GemmKernels kGemmAvx2 = kernels_of<Avx2>();

}  // namespace dflash
