#include "sample/cpu/span.h"

namespace dflash {

const SpanKernels& span_kernels() { return of_isa(kSpanPortable, kSpanAvx2, kSpanAvx512); }

}  // namespace dflash
