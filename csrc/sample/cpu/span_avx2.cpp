#include "sample/cpu/span_loops.h"

namespace dflash {

constinit const SpanKernels kSpanAvx2 = span_loops();

}  // namespace dflash
