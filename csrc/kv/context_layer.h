// What every backend of context_kv shares: which rows it stores, and a layer's call of
// rope_append_kv.
#pragma once

#include "kv/context_params.h"

namespace dflash {

// Whether some group stores the row.
static constexpr bool is_stored(const ContextKvParams& p, int64_t row) {
  if (p.positions[row] == -1) return false;
  for (int64_t g = 0; g < p.num_groups; ++g) {
    if (p.slots(g, row) != -1) return true;
  }
  return false;
}

// K and V of `num_rows` rows as a layer's projection leaves them: side by side in rows of `kv`, a
// matrix with heads(first_col, head_dim). Without positions, slots and status.
template <class Matrix>
RopeAppendKvParams layer_append(const ContextKvParams& p, const ContextKvLayer& layer, Matrix& kv,
                                int64_t num_rows) {
  RopeAppendKvParams a{};
  a.q = a.k = kv.heads(0, layer.k_cache.head_dim);
  a.v = kv.heads(layer.num_kv_heads * layer.k_cache.head_dim, layer.v_cache.head_dim);
  a.cos_sin = p.cos_sin;
  a.k_norm = layer.k_norm;
  a.num_rows = num_rows;
  a.num_kv_heads = layer.num_kv_heads;
  a.num_pages = layer.num_pages;
  a.page_size = layer.page_size;
  a.max_positions = p.max_positions;
  a.rotary_dim = p.rotary_dim;
  a.eps = p.eps;
  a.is_neox = p.is_neox;
  a.k_cache = layer.k_cache;
  a.v_cache = layer.v_cache;
  return a;
}

}  // namespace dflash
