#include "verify/cpu/law_loops.h"

namespace dflash {

constinit const LawKernels kLawAvx512 = law_loops();

}  // namespace dflash
