#include "gemm/cpu/kernels.h"

namespace dflash {

const GemmKernels& gemm_kernels() {
  switch (cpu_isa()) {
    case Isa::kAmx: return kGemmAmx;
    case Isa::kAvx512Bf16: return kGemmAvx512Bf16;
    case Isa::kAvx512: return kGemmAvx512;
    case Isa::kAvx2: return kGemmAvx2;
    default: return kGemmPortable;
  }
}

}  // namespace dflash
