#include "common/cpu/fp32_row_loops.h"

namespace dflash {

constinit const RowKernels kRowPortable = row_loops();

}  // namespace dflash
