#include "common/cpu/fp32_row_loops.h"

namespace dflash {

constinit const RowKernels kRowAvx2 = row_loops();

}  // namespace dflash
