#include "attention/cpu/kernels.h"
#include "common/cpu/isa.h"

namespace dflash {

const BlockOps& block_ops() {
  switch (cpu_isa()) {
    case Isa::kAmx:
    case Isa::kAvx512Bf16: return block_ops_avx512bf16();
    case Isa::kAvx512: return block_ops_avx512();
    case Isa::kAvx2: return block_ops_avx2();
    default: return block_ops_portable();
  }
}

}  // namespace dflash
