// The product of the lm_head ops from sm_80 up, for every kind of head.
#pragma once

#include "gemm/cuda/quant_product.cuh"
#include "lm_head/cuda/scan.cuh"

namespace dflash {

// In place of the type of a head's elements.
struct QuantisedHead {};

// Sums of the CTA's rows of the head for rows first_token .. of x, at most tile_rows; sum_at reads
// them. place_of as in Product.
template <class T, GemmShape kShape, class PlaceOf>
__device__ inline void compute_head(const HeadLaunch& c, char* shared, PlaceOf place_of,
                                    int64_t first_token, int64_t tile_rows) {
  const int64_t num_tokens = min(first_token + tile_rows, c.head.options.num_rows);
  if constexpr (std::is_same_v<T, QuantisedHead>) {
    const QuantRows rows = rows_in(c.x, c.plan.quant_rows);
    const int64_t most = min(tile_rows, c.head.options.num_rows);
    const QuantStages stages = plan_quant_stages(kShape, c.head.weight, rows.num_planes, most);
    const QuantProductParams product{rows, c.head.weight, num_tokens, stages};
    QuantProduct<kShape>(product, shared, place_of, first_token).compute(shared);
  } else {
    const ProductParams product = head_product(c, num_tokens);
    Product<T, kShape>(product, shared, place_of, first_token).compute(shared);
  }
}

}  // namespace dflash
