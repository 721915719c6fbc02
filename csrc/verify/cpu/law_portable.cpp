#include "verify/cpu/law_loops.h"

namespace dflash {

constinit const LawKernels kLawPortable = law_loops();

}  // namespace dflash
