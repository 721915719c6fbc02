#include "sample/cpu/span_loops.h"

namespace dflash {

constinit const SpanKernels kSpanAvx512 = span_loops();

}  // namespace dflash
