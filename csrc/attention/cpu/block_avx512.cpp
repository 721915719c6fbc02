#include "attention/cpu/avx512.h"
#include "attention/cpu/block_impl.h"

namespace dflash {

const BlockOps& block_ops_avx512() {
  static constexpr BlockOps kOps = block_ops<Avx512>();
  return kOps;
}

}  // namespace dflash
