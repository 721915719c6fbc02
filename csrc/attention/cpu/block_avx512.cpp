#include "attention/cpu/avx512.h"
#include "attention/cpu/block_table.h"

namespace dflash {

const BlockOps& block_ops_avx512() {
  static constexpr BlockOps kOps =
      block_ops<Avx512, Floats<Avx512, 6, 4>, Bf16Words<Avx512, 5, 4>>();
  return kOps;
}

}  // namespace dflash
