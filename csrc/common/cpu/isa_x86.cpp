#include <xmmintrin.h>

#include "common/cpu/isa.h"

namespace dflash {

bool has_isa(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case Isa::kPortable: return true;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

uint32_t flush_denormals() {
  constexpr uint32_t kFtz = 1 << 15, kDaz = 1 << 6;
  const uint32_t mode = _mm_getcsr();
  _mm_setcsr(mode | kFtz | kDaz);
  return mode;
}

void restore_denormals(uint32_t mode) { _mm_setcsr(mode); }

}  // namespace dflash
