// The table of an instruction set: vectors, and the two ways to multiply.
#pragma once

#include "attention/cpu/block_products.h"
#include "attention/cpu/block_softmax.h"
#include "attention/cpu/merge_states_rows.h"

namespace dflash {

template <class V, class FloatProducts, class Bf16Products>
static constexpr BlockOps block_ops() {
  return {block_products<FloatProducts>(),
          block_products<Bf16Products>(),
          all_finite<V>,
          softmax<V>,
          merge<V>,
          merge_states_rows};
}

}  // namespace dflash
