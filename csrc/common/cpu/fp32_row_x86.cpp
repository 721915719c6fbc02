#include "common/cpu/fp32_row.h"

namespace dflash {

const RowKernels& row_kernels() { return of_isa(kRowPortable, kRowAvx2, kRowAvx512); }

}  // namespace dflash
