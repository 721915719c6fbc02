// AVX-512 with the bf16 dot product. It adds the high element of a word first, then the low one,
// each with one rounding, and flushes denormals: the fma chain of the other instruction sets, if
// the even element lies in the high half.

#include "attention/cpu/avx512.h"
#include "attention/cpu/block_table.h"

namespace dflash {
namespace {

// Words with the even element in the high half.
struct SwappedWords : Avx512 {
  using Avx512::widen;
  static __m512i swap(__m512i words) { return _mm512_rol_epi32(words, 16); }
  static Reg widen(const float* x) { return _mm512_castsi512_ps(swap(_mm512_loadu_si512(x))); }
  static void interleave(const BF16* even, const BF16* odd, float* words) {
    Avx512::interleave(odd, even, words);
  }
};

struct Bf16Dot {
  using Vector = Avx512;
  static constexpr int kRows = 6, kVecs = 4;  // 24 sums, 4 words and a factor in 32 registers
  static constexpr int kElements = 2;
  static constexpr int kParts = 1;

  static __m512 part(__m512 words, int) { return words; }
  static __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
    return _mm512_dpbf16_ps(c, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
  }
  static void load_queries(const GatheredRows& in, float* out) {
    load_rows<SwappedWords>(words_of(in), out, in.dim);
  }
  static void load_keys(const GatheredRows& in, float* out) {
    load_transposed<SwappedWords>(words_of(in), out);
  }
  static void load_values(const GatheredRows& in, float* out, int64_t out_dim) {
    interleave_rows<SwappedWords>(in, out, out_dim);
  }
  // Rounds the 64 weights of a pair into its first 32 words.
  static void pack_weights(float* weights, int64_t num_pairs) {
    for (float* row = weights; row < weights + num_pairs * kBlockKeys; row += kBlockKeys) {
      for (int i = 0; i < kBlockKeys; i += 32) {
        const __m512bh pairs =
            _mm512_cvtne2ps_pbh(_mm512_loadu_ps(row + i + 16), _mm512_loadu_ps(row + i));
        _mm512_storeu_si512(row + i / 2, SwappedWords::swap(std::bit_cast<__m512i>(pairs)));
      }
    }
  }
};

}  // namespace

const BlockOps& block_ops_avx512bf16() {
  static constexpr BlockOps kOps = block_ops<Avx512, Floats<Avx512, 6, 4>, Bf16Dot>();
  return kOps;
}

}  // namespace dflash
