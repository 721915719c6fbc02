#include "sample/cpu/span.h"

namespace dflash {

const SpanKernels& span_kernels() {
  switch (cpu_isa()) {
    case Isa::kAvx512Bf16:
    case Isa::kAvx512: return kSpanAvx512;
    case Isa::kAvx2: return kSpanAvx2;
    default: return kSpanPortable;
  }
}

}  // namespace dflash
