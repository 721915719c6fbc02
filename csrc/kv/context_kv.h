// context_kv, torch side: checks, the same for every backend. A backend is a function
// void run(const ContextKvParams&, const Tensor& features).
#pragma once

#include "gemm/weight.h"
#include "kv/cache.h"
#include "kv/context_params.h"
#include "kv/lists.h"

namespace dflash {

struct ContextKvTensors {
  const TensorList& kv_weights;
  const TensorList& k_caches;
  const TensorList& v_caches;
  const std::optional<std::vector<int64_t>>& layer_groups;
  const OptionalTensorList& k_norms;
  const OptionalTensorList& k_scales;
  const OptionalTensorList& v_scales;
};

inline ContextKvLayer context_kv_layer(const Checks& checks, const ContextKvTensors& t, size_t idx,
                                       const ContextKvParams& p, ScalarType dtype, int64_t hidden) {
  const auto named = [idx](const char* name) { return element_name(name, idx); };
  ContextKvLayer layer{};
  layer.group = t.layer_groups ? (*t.layer_groups)[idx] : 0;
  checks.at_least<int64_t>(named("layer_groups").c_str(), layer.group, 0);
  if (layer.group >= p.num_groups) {
    checks.fail(named("layer_groups"), " must be below len(slots) = ", p.num_groups, ", got ",
                layer.group);
  }
  const Tensor &k = t.k_caches[idx], &v = t.v_caches[idx];
  layer.k_cache.pages = checks.array_out<4>(named("k_caches").c_str(), k, kCacheDtypes,
                                            "[num_pages, page_size, Hkv, Dk]", {-1, -1, -1, -1});
  layer.num_pages = k.size(0);
  layer.page_size = k.size(1);
  layer.num_kv_heads = k.size(2);
  layer.k_cache.head_dim = k.size(3);
  layer.v_cache.pages = checks.array_out<4>(
      named("v_caches").c_str(), v, kCacheDtypes, "[num_pages, page_size, Hkv, Dv]",
      {layer.num_pages, layer.page_size, layer.num_kv_heads, -1});
  layer.v_cache.head_dim = v.size(3);
  checks.last_contiguous(named("k_caches").c_str(), k);
  checks.last_contiguous(named("v_caches").c_str(), v);
  if (p.rotary_dim % 2 != 0 || p.rotary_dim > k.size(3)) {
    checks.fail("rotary_dim must be even and at most Dk = ", k.size(3), ", got ", p.rotary_dim);
  }
  const int64_t width = layer.num_kv_heads * (k.size(3) + v.size(3));
  layer.weight = gemm_weight(checks, t.kv_weights[idx], dtype, hidden, width, false,
                             named("kv_weights").c_str());
  if (t.k_norms) {
    layer.k_norm =
        checks.array<1>(named("k_norms").c_str(), (*t.k_norms)[idx], kFloats, "[Dk]", {k.size(3)});
    checks.last_contiguous(named("k_norms").c_str(), (*t.k_norms)[idx]);
  }
  if (t.k_scales) layer.k_cache.scale = kv_scale(checks, "k", (*t.k_scales)[idx], k);
  if (t.v_scales) layer.v_cache.scale = kv_scale(checks, "v", (*t.v_scales)[idx], v);
  return layer;
}

template <auto kRun>
void context_kv(const Tensor& features, const Tensor& fc, const Tensor& hidden_norm,
                const TensorList& kv_weights, const TensorList& k_caches,
                const TensorList& v_caches, const Tensor& positions, const Tensor& slots,
                const std::optional<std::vector<int64_t>>& layer_groups,
                const OptionalTensorList& k_norms, const OptionalTensor& cos_sin, bool neox,
                double eps, const OptionalTensorList& k_scales, const OptionalTensorList& v_scales,
                const OptionalTensor& status) {
  const Checks checks{"context_kv", features};
  ContextKvParams p{};
  p.features = checks.array<2>("features", features, kFloats, "[T, F * H]", {-1, -1});
  checks.last_contiguous("features", features);
  p.num_rows = features.size(0);
  p.hidden_norm = checks.array<1>("hidden_norm", hidden_norm, kFloats, "[H]", {-1});
  checks.last_contiguous("hidden_norm", hidden_norm);
  const int64_t hidden = hidden_norm.size(0);
  const ScalarType dtype = features.scalar_type();
  p.fc = gemm_weight(checks, fc, dtype, features.size(1), hidden, false, "fc");
  p.positions = checks.index("positions", positions, "[T]", p.num_rows);
  p.slots = checks.index_table("slots", slots, "[G, T]", {-1, p.num_rows});
  p.num_groups = slots.size(0);
  const size_t num_layers = kv_weights.size();
  const auto length = [&](const char* name, size_t got) {
    if (got != num_layers) checks.fail("len(", name, ") must be ", num_layers, ", got ", got);
  };
  length("k_caches", k_caches.size());
  length("v_caches", v_caches.size());
  if (layer_groups) length("layer_groups", layer_groups->size());
  if (k_norms) length("k_norms", k_norms->size());
  if (k_scales) length("k_scales", k_scales->size());
  if (v_scales) length("v_scales", v_scales->size());
  p.cos_sin = checks.array<2>("cos_sin", cos_sin, {ScalarType::Float},
                              "[max_positions, rotary_dim]", {-1, -1});
  if (cos_sin) {
    checks.last_contiguous("cos_sin", *cos_sin);
    p.max_positions = cos_sin->size(0);
    p.rotary_dim = cos_sin->size(1);
  }
  p.is_neox = neox;
  checks.at_least("eps", eps, 0.0);
  p.eps = static_cast<float>(eps);
  p.status = checks.status(status, "[T]", p.num_rows);
  const ContextKvTensors tensors{kv_weights, k_caches, v_caches, layer_groups,
                                 k_norms,    k_scales, v_scales};
  std::vector<ContextKvLayer> layers;
  for (size_t idx = 0; idx < num_layers; ++idx) {
    layers.push_back(context_kv_layer(checks, tensors, idx, p, dtype, hidden));
  }
  p.layers = layers.data();
  p.num_layers = static_cast<int64_t>(num_layers);
  kRun(p, features);
}

}  // namespace dflash
