// What every backend of context_kv receives: no torch, no CUDA.
#pragma once

#include "gemm/params.h"
#include "kv/params.h"

namespace dflash {

// One drafter layer: its projection, where its rows go, and how they are normed.
struct ContextKvLayer {
  GemmWeight weight;    // [Hkv * (Dk + Dv), H]  rows of K, then of V
  ArrayView<1> k_norm;  // [Dk]?
  KvCache k_cache;
  KvCache v_cache;
  int64_t num_pages;
  int64_t page_size;
  int64_t num_kv_heads;
  int64_t group;  // row of `slots`
};

struct ContextKvParams {
  ArrayView<2> features;     // [T, F * H']
  GemmWeight fc;             // [H, F * H']
  ArrayView<1> hidden_norm;  // [H]
  const ContextKvLayer* layers;
  IndexView positions;   // [T]
  IndexTable slots;      // [G, T]
  ArrayView<2> cos_sin;  // [max_positions, rotary_dim]?
  StatusView status;     // [T]?
  int64_t num_layers;
  int64_t num_rows;    // T
  int64_t num_groups;  // G
  int64_t max_positions;
  int64_t rotary_dim;
  float eps;
  bool is_neox;
};

}  // namespace dflash
