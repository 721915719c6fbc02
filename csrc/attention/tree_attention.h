// tree_attention, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const TreeAttentionParams&, const Tensor& q), q for allocating.
#pragma once

#include <cmath>
#include <tuple>

#include "attention/params.h"
#include "common/check.h"
#include "common/tensor.h"
#include "kv/cache.h"

namespace dflash {

inline constexpr int64_t kMaxHeadDim = 256;

inline void check_head_dim(const Checks& checks, const char* name, int64_t dim) {
  if (dim < 8 || dim > kMaxHeadDim || dim % 8 != 0) {
    checks.fail(name, " must be a multiple of 8 from 8 to ", kMaxHeadDim, ", got ", dim);
  }
}

template <auto kRun>
void tree_attention_out(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                        const Tensor& block_table, const Tensor& cu_rows,
                        const OptionalTensor& ctx_lens, const OptionalTensor& kv_lens,
                        const OptionalTensor& req_rows, const OptionalTensor& table_start,
                        const OptionalTensor& kv_start, const OptionalTensor& tree_nodes,
                        const OptionalTensor& mask_bits, const OptionalTensor& depth, bool causal,
                        int64_t window_left, int64_t window_right, std::optional<double> scale,
                        double softcap, const OptionalTensor& sinks, const OptionalTensor& k_scale,
                        const OptionalTensor& v_scale, int64_t null_page,
                        const OptionalTensor& status, const Tensor& out, const Tensor& lse) {
  const Checks checks{"tree_attention", q};
  TreeAttentionParams p{};
  p.q = checks.array<3>("q", q, kFloats, "[T, Hq, Dk]", {-1, -1, -1});
  p.num_rows = q.size(0);
  p.num_heads = q.size(1);
  p.k_dim = q.size(2);
  check_head_dim(checks, "Dk", p.k_dim);
  p.k_cache = checks.array<4>("k_cache", k_cache, kCacheDtypes, "[num_pages, page_size, Hkv, Dk]",
                              {-1, -1, -1, p.k_dim});
  const int64_t num_pages = k_cache.size(0), page_size = k_cache.size(1);
  p.num_kv_heads = k_cache.size(2);
  checks.at_least<int64_t>("page_size", page_size, 1);
  checks.at_least<int64_t>("Hkv", p.num_kv_heads, 1);
  if (p.num_heads % p.num_kv_heads != 0) {
    checks.fail("Hq must be a multiple of Hkv = ", p.num_kv_heads, ", got ", p.num_heads);
  }
  p.v_cache = checks.array<4>("v_cache", v_cache, kCacheDtypes, "[num_pages, page_size, Hkv, Dv]",
                              {num_pages, page_size, p.num_kv_heads, -1});
  p.v_dim = v_cache.size(3);
  check_head_dim(checks, "Dv", p.v_dim);
  checks.last_contiguous("q", q);
  checks.last_contiguous("k_cache", k_cache);
  checks.last_contiguous("v_cache", v_cache);

  p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", -1);
  checks.at_least<int64_t>("len(cu_rows)", cu_rows.size(0), 1);
  p.num_requests = cu_rows.size(0) - 1;
  p.pages.block_table = checks.index_table("block_table", block_table, "[R, max_pages]", {-1, -1});
  const int64_t num_state_rows = block_table.size(0);
  p.pages.table_start = checks.index("table_start", table_start, "[R]", num_state_rows);
  p.pages.num_pages = num_pages;
  p.pages.page_size = page_size;
  p.pages.null_page = null_page;
  p.request_rows = {checks.index("req_rows", req_rows, "[B]", p.num_requests), num_state_rows};
  if (ctx_lens.has_value() == kv_lens.has_value()) {
    checks.fail("one of ctx_lens and kv_lens must be given, got ", ctx_lens ? "both" : "neither");
  }
  p.lengths = {ctx_lens ? checks.index("ctx_lens", ctx_lens, "[R]", num_state_rows)
                        : checks.index("kv_lens", kv_lens, "[R]", num_state_rows),
               kv_lens.has_value()};
  p.kv_start = checks.index("kv_start", kv_start, "[R]", num_state_rows);

  if (mask_bits.has_value() != depth.has_value()) {
    checks.fail("mask_bits and depth must be given together, got ",
                mask_bits ? "mask_bits" : "depth", " alone");
  }
  if (mask_bits) {
    checks.tensor("mask_bits", *mask_bits, {ScalarType::Int}, "[T, W]", {p.num_rows, -1});
    p.mask_bits = checks.index_table("mask_bits", *mask_bits, "[T, W]", {p.num_rows, -1});
  }
  p.depth = checks.index("depth", depth, "[T]", p.num_rows);
  p.tree_nodes = checks.index("tree_nodes", tree_nodes, "[B]", p.num_requests);

  p.causal = causal;
  checks.at_least<int64_t>("window_left", window_left, -1);
  checks.at_least<int64_t>("window_right", window_right, -1);
  checks.at_least("softcap", softcap, 0.0);
  p.window_left = window_left;
  p.window_right = window_right;
  p.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(p.k_dim))));
  p.softcap = static_cast<float>(softcap);
  p.sinks = checks.array<1>("sinks", sinks, kFloats, "[Hq]", {p.num_heads});
  p.k_scale = kv_scale(checks, "k", k_scale, k_cache);
  p.v_scale = kv_scale(checks, "v", v_scale, v_cache);
  p.status = checks.status(status, "[B]", p.num_requests);
  p.out = checks.array_out<3>("out", out, {q.scalar_type()}, "[T, Hq, Dv]",
                              {p.num_rows, p.num_heads, p.v_dim});
  p.lse =
      checks.array_out<2>("lse", lse, {ScalarType::Float}, "[T, Hq]", {p.num_rows, p.num_heads});
  kRun(p, q);
}

template <auto kRun>
std::tuple<Tensor, Tensor> tree_attention(
    const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
    const Tensor& cu_rows, const OptionalTensor& ctx_lens, const OptionalTensor& kv_lens,
    const OptionalTensor& req_rows, const OptionalTensor& table_start,
    const OptionalTensor& kv_start, const OptionalTensor& tree_nodes,
    const OptionalTensor& mask_bits, const OptionalTensor& depth, bool causal, int64_t window_left,
    int64_t window_right, std::optional<double> scale, double softcap, const OptionalTensor& sinks,
    const OptionalTensor& k_scale, const OptionalTensor& v_scale, int64_t null_page,
    const OptionalTensor& status) {
  // Not checked yet: tree_attention_out says what is wrong.
  const int64_t num_rows = q.dim() > 0 ? q.size(0) : 0, num_heads = q.dim() > 1 ? q.size(1) : 0;
  const int64_t v_dim = v_cache.dim() > 0 ? v_cache.size(v_cache.dim() - 1) : 0;
  std::tuple outs{new_tensor(q, {num_rows, num_heads, v_dim}, q.scalar_type()),
                  new_tensor(q, {num_rows, num_heads}, ScalarType::Float)};
  tree_attention_out<kRun>(q, k_cache, v_cache, block_table, cu_rows, ctx_lens, kv_lens, req_rows,
                           table_start, kv_start, tree_nodes, mask_bits, depth, causal, window_left,
                           window_right, scale, softcap, sinks, k_scale, v_scale, null_page, status,
                           std::get<0>(outs), std::get<1>(outs));
  return outs;
}

}  // namespace dflash
