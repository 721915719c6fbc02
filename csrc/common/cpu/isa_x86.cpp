#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "common/cpu/isa.h"

namespace dflash {

// A process must ask Linux for the tiles' registers, once.
static bool has_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  static const bool is_granted = __builtin_cpu_supports("amx-tile") &&
                                 __builtin_cpu_supports("amx-bf16") &&
                                 syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_granted;
}

bool has_isa(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  const bool bf16 =
      avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  switch (isa) {
    case Isa::kPortable: return true;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Bf16: return bf16;
    case Isa::kAmx: return bf16 && has_tiles();
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
