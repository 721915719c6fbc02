// rope_append_kv, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const RopeAppendKvParams&, int32_t device_idx).
#pragma once

#include "common/tensor.h"
#include "kv/cache.h"

namespace dflash {

template <auto kRun>
void rope_append_kv_out(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
                        const Tensor& v_cache, const Tensor& positions, const Tensor& slots,
                        const OptionalTensor& cos_sin, bool neox, const OptionalTensor& q_norm,
                        const OptionalTensor& k_norm, double eps, const OptionalTensor& k_scale,
                        const OptionalTensor& v_scale, const OptionalTensor& status,
                        const Tensor& out) {
  const Checks checks{"rope_append_kv", q};
  const ScalarType dtype = q.scalar_type();
  RopeAppendKvParams p{};
  p.q = checks.array<3>("q", q, kFloats, "[T, Hq, Dk]", {-1, -1, -1});
  const int64_t num_rows = q.size(0), head_dim = q.size(2);
  p.k = checks.array<3>("k", k, {dtype}, "[T, Hkv, Dk]", {num_rows, -1, head_dim});
  const int64_t num_heads = k.size(1);
  p.v = checks.array<3>("v", v, {dtype}, "[T, Hkv, Dv]", {num_rows, num_heads, -1});
  p.k_cache.pages =
      checks.array_out<4>("k_cache", k_cache, kCacheDtypes, "[num_pages, page_size, Hkv, Dk]",
                          {-1, -1, num_heads, head_dim});
  p.num_pages = k_cache.size(0);
  p.page_size = k_cache.size(1);
  p.v_cache.pages =
      checks.array_out<4>("v_cache", v_cache, kCacheDtypes, "[num_pages, page_size, Hkv, Dv]",
                          {p.num_pages, p.page_size, num_heads, v.size(2)});
  checks.last_contiguous("q", q);
  checks.last_contiguous("k", k);
  checks.last_contiguous("v", v);
  checks.last_contiguous("k_cache", k_cache);
  checks.last_contiguous("v_cache", v_cache);
  p.positions = checks.index("positions", positions, "[T]", num_rows);
  p.slots = checks.index("slots", slots, "[T]", num_rows);
  p.cos_sin = checks.array<2>("cos_sin", cos_sin, {ScalarType::Float},
                              "[max_positions, rotary_dim]", {-1, -1});
  if (cos_sin) {
    checks.last_contiguous("cos_sin", *cos_sin);
    p.max_positions = cos_sin->size(0);
    p.rotary_dim = cos_sin->size(1);
    if (p.rotary_dim % 2 != 0 || p.rotary_dim > head_dim) {
      checks.fail("rotary_dim must be even and at most Dk = ", head_dim, ", got ", p.rotary_dim);
    }
  }
  p.q_norm = checks.array<1>("q_norm", q_norm, kFloats, "[Dk]", {head_dim});
  p.k_norm = checks.array<1>("k_norm", k_norm, kFloats, "[Dk]", {head_dim});
  if (q_norm) checks.last_contiguous("q_norm", *q_norm);
  if (k_norm) checks.last_contiguous("k_norm", *k_norm);
  checks.at_least("eps", eps, 0.0);
  p.k_cache.scale = kv_scale(checks, "k", k_scale, k_cache);
  p.v_cache.scale = kv_scale(checks, "v", v_scale, v_cache);
  p.status = checks.status(status, "[T]", num_rows);
  p.out = checks.array_out<3>("out", out, {dtype}, "[T, Hq, Dk]", {num_rows, q.size(1), head_dim});
  p.num_rows = num_rows;
  p.num_q_heads = q.size(1);
  p.num_kv_heads = num_heads;
  p.k_cache.head_dim = head_dim;
  p.v_cache.head_dim = v.size(2);
  p.eps = static_cast<float>(eps);
  p.is_neox = neox;
  kRun(p, q.get_device_index());
}

template <auto kRun>
Tensor rope_append_kv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
                      const Tensor& v_cache, const Tensor& positions, const Tensor& slots,
                      const OptionalTensor& cos_sin, bool neox, const OptionalTensor& q_norm,
                      const OptionalTensor& k_norm, double eps, const OptionalTensor& k_scale,
                      const OptionalTensor& v_scale, const OptionalTensor& status) {
  Tensor out = new_tensor(q, q.sizes(), q.scalar_type());
  rope_append_kv_out<kRun>(q, k, v, k_cache, v_cache, positions, slots, cos_sin, neox, q_norm,
                           k_norm, eps, k_scale, v_scale, status, out);
  return out;
}

}  // namespace dflash
