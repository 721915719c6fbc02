#include "verify/cpu/law.h"

namespace dflash {

const LawKernels& law_kernels() { return kLawPortable; }

}  // namespace dflash
