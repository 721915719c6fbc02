#include "common/cpu/fp32_row.h"

namespace dflash {

const RowKernels& row_kernels() {
  switch (cpu_isa()) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512: return kRowAvx512;
    case Isa::kAvx2: return kRowAvx2;
    default: return kRowPortable;
  }
}

}  // namespace dflash
