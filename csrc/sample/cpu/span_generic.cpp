#include "sample/cpu/span.h"

namespace dflash {

const SpanKernels& span_kernels() { return kSpanPortable; }

}  // namespace dflash
