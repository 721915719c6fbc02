// What every backend of context_kv shares: which rows it stores, which layers it projects together,
// and a layer's call of rope_append_kv.
#pragma once

#include "kv/context_params.h"
#include "kv/plan.h"

namespace dflash {

// Whether some group stores the row.
static constexpr bool is_stored(const ContextKvParams& p, int64_t row) {
  if (p.positions[row] == -1) return false;
  for (int64_t g = 0; g < p.num_groups; ++g) {
    if (p.slots(g, row) != -1) return true;
  }
  return false;
}

// Layers whose weights follow one another in memory: one product projects them all.
struct ContextStack {
  const ContextKvLayer* layers;
  int64_t num_layers;
  GemmWeight weight;
};

// Calls f(stack) for the layers in order. What a stack's product leaves is kept small where rows
// are many, and a launch of its own is little beside a layer's work.
template <class F>
void for_each_stack(const ContextKvParams& p, const F& f) {
  for (int64_t first = 0; first < p.num_layers;) {
    ContextStack stack{p.layers + first, 1, p.layers[first].weight};
    for (; first + stack.num_layers < p.num_layers; ++stack.num_layers) {
      const GemmWeight& next = p.layers[first + stack.num_layers].weight;
      const int64_t rows = stack.weight.num_rows + next.num_rows;
      if (stack.num_layers == kMaxStackedLayers || !stack.weight.is_followed_by(next) ||
          rows * p.num_rows * float_bytes(p.features.dtype) > kMaxStackedBytes) {
        break;
      }
      stack.weight.num_rows = rows;
    }
    f(stack);
    first += stack.num_layers;
  }
}

// K and V of `num_rows` rows as a layer's projection leaves them: side by side from `first_col` on
// in rows of `kv`, a matrix with heads(first_col, head_dim). Without positions, slots and status.
template <class Matrix>
RopeAppendKvParams layer_append(const ContextKvParams& p, const ContextKvLayer& layer, Matrix& kv,
                                int64_t first_col, int64_t num_rows) {
  RopeAppendKvParams a{};
  a.q = a.k = kv.heads(first_col, layer.k_cache.head_dim);
  a.v = kv.heads(first_col + layer.num_kv_heads * layer.k_cache.head_dim, layer.v_cache.head_dim);
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
