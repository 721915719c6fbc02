#include "verify/cpu/law.h"

namespace dflash {

const LawKernels& law_kernels() {
  switch (cpu_isa()) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512: return kLawAvx512;
    case Isa::kAvx2: return kLawAvx2;
    default: return kLawPortable;
  }
}

}  // namespace dflash
