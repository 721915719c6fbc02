#include "attention/cpu/kernels.h"

namespace dflash {

const BlockOps& block_ops() { return block_ops_portable(); }

}  // namespace dflash
