// What every backend of the attention ops receives: no torch, no CUDA.
#pragma once

#include "common/paged.h"
#include "common/views.h"
#include "kv/params.h"

namespace dflash {

struct TreeAttentionParams {
  ArrayView<3> q;            // [T, Hq, Dk]
  ArrayView<4> k_cache;      // [num_pages, page_size, Hkv, Dk]
  ArrayView<4> v_cache;      // [num_pages, page_size, Hkv, Dv]
  KvScale k_scale, v_scale;  // factors of the stored keys and values
  PageTable pages;           // [R, max_pages]
  IndexView cu_rows;         // [B + 1]  packed rows per request
  RequestRows request_rows;  // [B]?
  Lengths lengths;           // [R]
  IndexView kv_start;        // [R]?     first valid key; absent: 0
  IndexView tree_nodes;      // [B]?     > 0: the rows of the request are nodes
  IndexTable mask_bits;      // [T, W]?  bit j: the node may see row j of its request
  IndexView depth;           // [T]?     the node's position is ctx_len + depth
  ArrayView<1> sinks;        // [Hq]?    logit of a key without a value
  StatusView status;         // [B]?
  int64_t num_rows;          // T
  int64_t num_requests;      // B
  int64_t num_heads;         // Hq
  int64_t num_kv_heads;      // Hkv
  int64_t k_dim;             // Dk
  int64_t v_dim;             // Dv
  int64_t window_left;       // keys at most this far before the query; -1: any
  int64_t window_right;      // and after it
  float scale;
  float softcap;  // 0: none
  bool causal;    // whether a row of a chain sees no later row

  ArrayOut<3> out;  // [T, Hq, Dv]
  ArrayOut<2> lse;  // [T, Hq]  natural log, without the sink
};

struct MergeStatesParams {
  ArrayView<3> out_a, out_b;  // [T, Hq, Dv]
  ArrayView<2> lse_a, lse_b;  // [T, Hq]
  ArrayView<1> sinks;         // [Hq]?
  int64_t num_rows;           // T
  int64_t num_heads;          // Hq
  int64_t v_dim;              // Dv

  ArrayOut<3> out;  // [T, Hq, Dv]
  ArrayOut<2> lse;  // [T, Hq]
};

}  // namespace dflash
