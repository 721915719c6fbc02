// AVX-512 with the bf16 dot product for scores. It adds the high element of a word first, then the
// low one, each with one rounding, and flushes denormals: the fma chain of the other instruction
// sets, if the even element lies in the high half.

#include "attention/cpu/avx512.h"
#include "attention/cpu/block_impl.h"

namespace dflash {
namespace {

struct Bf16Pairs : Avx512 {
  using Avx512::widen;
  static Reg widen(const float* x) {
    return _mm512_castsi512_ps(_mm512_rol_epi32(_mm512_loadu_si512(x), 16));
  }
  static Reg fma(Reg a, Reg b, Reg c) {
    return _mm512_dpbf16_ps(c, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
  }
};

}  // namespace

const BlockOps& block_ops_avx512bf16() {
  static constexpr BlockOps kOps = [] {
    BlockOps ops = block_ops<Avx512>();
    ops.bf16_pairs = score_ops<Bf16Pairs>();
    return ops;
  }();
  return kOps;
}

}  // namespace dflash
