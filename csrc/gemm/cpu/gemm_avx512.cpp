#include "gemm/cpu/avx512.h"

namespace dflash {

constinit const GemmKernels kGemmAvx512 = kernels_of<Avx512>();

}  // namespace dflash
