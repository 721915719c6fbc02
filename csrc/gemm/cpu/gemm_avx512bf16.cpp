#include "gemm/cpu/avx512bf16.h"

namespace dflash {

constinit const GemmKernels kGemmAvx512Bf16 = kernels_of<Avx512Bf16>();

}  // namespace dflash
