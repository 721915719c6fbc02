#include "gemm/cpu/kernels.h"

namespace dflash {

const GemmKernels& gemm_kernels() { return kGemmPortable; }

}  // namespace dflash
