#include "verify/cpu/law_loops.h"

namespace dflash {

constinit const LawKernels kLawAvx2 = law_loops();

}  // namespace dflash
