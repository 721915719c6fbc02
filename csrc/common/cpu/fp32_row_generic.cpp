#include "common/cpu/fp32_row.h"

namespace dflash {

const RowKernels& row_kernels() { return kRowPortable; }

}  // namespace dflash
