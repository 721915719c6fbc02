#include "verify/cpu/law.h"

namespace dflash {

const LawKernels& law_kernels() { return of_isa(kLawPortable, kLawAvx2, kLawAvx512); }

}  // namespace dflash
