#include "sample/cpu/span_loops.h"

namespace dflash {

constinit const SpanKernels kSpanPortable = span_loops();

}  // namespace dflash
