// compact_kv, torch side: checks, the same for every backend. A backend is a function
// void run(const CompactKvParams&, int32_t device_idx).
#pragma once

#include "common/check.h"
#include "kv/lists.h"
#include "kv/params.h"

namespace dflash {

inline PagedBytes paged_bytes(const Tensor& t) {
  const auto bytes = static_cast<int64_t>(t.element_size());
  const auto strides = t.strides();
  const int64_t row_length = t.dim() == 4 ? t.size(3) : 1;
  PagedBytes view{static_cast<char*>(t.mutable_data_ptr()),
                  strides[0] * bytes,
                  strides[1] * bytes,
                  strides[2] * bytes,
                  t.size(2),
                  row_length * bytes};
  if (strides[2] == row_length) {  // the heads of a row lie side by side
    view.piece_bytes *= view.num_pieces;
    view.num_pieces = 1;
  }
  return view;
}

struct CompactKvTensors {
  const TensorList& k_caches;
  const TensorList& v_caches;
  const TensorList& block_tables;
  const std::optional<std::vector<int64_t>>& layer_groups;
  const OptionalTensorList& table_starts;
  const OptionalTensorList& k_scales;
  const OptionalTensorList& v_scales;
};

inline std::vector<PageTable> page_tables(const Checks& checks, const CompactKvTensors& t,
                                          int64_t null_page) {
  std::vector<PageTable> groups;
  const int64_t num_state_rows = t.block_tables[0].dim() > 0 ? t.block_tables[0].size(0) : -1;
  for (size_t g = 0; g < t.block_tables.size(); ++g) {
    PageTable table{};
    table.block_table =
        checks.index_table(element_name("block_tables", g).c_str(), t.block_tables[g],
                           "[R, max_pages]", {num_state_rows, -1});
    if (t.table_starts) {
      table.table_start = checks.index(element_name("table_starts", g).c_str(),
                                       (*t.table_starts)[g], "[R]", num_state_rows);
    }
    table.num_pages = table.page_size = -1;  // those of the group's first layer
    table.null_page = null_page;
    groups.push_back(table);
  }
  return groups;
}

// Views layer `idx` and lets its group know, or agree on, the pages.
inline PagedLayer paged_layer(const Checks& checks, const CompactKvTensors& t, size_t idx,
                              std::vector<PageTable>& groups) {
  const auto named = [idx](const char* name) { return element_name(name, idx); };
  PagedLayer layer{};
  layer.group = t.layer_groups ? (*t.layer_groups)[idx] : 0;
  checks.at_least<int64_t>(named("layer_groups").c_str(), layer.group, 0);
  if (layer.group >= static_cast<int64_t>(groups.size())) {
    checks.fail(named("layer_groups"), " must be below len(block_tables) = ", groups.size(),
                ", got ", layer.group);
  }
  PageTable& table = groups[layer.group];
  const Tensor& k = t.k_caches[idx];
  const std::string k_name = named("k_caches");
  checks.any_tensor(k_name.c_str(), k, "[num_pages, page_size, Hkv, Dk]",
                    {table.num_pages, table.page_size, -1, -1});
  checks.last_contiguous(k_name.c_str(), k);
  table.num_pages = k.size(0);
  table.page_size = k.size(1);
  layer.tensors[0] = paged_bytes(k);
  if (!t.v_caches.empty()) {
    const std::string v_name = named("v_caches");
    checks.any_tensor(v_name.c_str(), t.v_caches[idx], "[num_pages, page_size, Hkv, Dv]",
                      {table.num_pages, table.page_size, -1, -1});
    checks.last_contiguous(v_name.c_str(), t.v_caches[idx]);
    layer.tensors[1] = paged_bytes(t.v_caches[idx]);
  }
  const auto scale = [&](const char* name, const OptionalTensorList& scales) -> PagedBytes {
    if (!scales) return {};
    checks.tensor(named(name).c_str(), (*scales)[idx], {ScalarType::Float},
                  "[num_pages, page_size, Hkv]", {table.num_pages, table.page_size, -1});
    return paged_bytes((*scales)[idx]);
  };
  layer.tensors[2] = scale("k_scales", t.k_scales);
  layer.tensors[3] = scale("v_scales", t.v_scales);
  return layer;
}

template <auto kRun>
void compact_kv(const TensorList& k_caches, const TensorList& v_caches,
                const TensorList& block_tables,
                const std::optional<std::vector<int64_t>>& layer_groups,
                const Tensor& accepted_rows, const Tensor& cu_rows, const OptionalTensor& num_kept,
                const OptionalTensor& ctx_lens, const OptionalTensor& kv_lens,
                const OptionalTensor& req_rows, const OptionalTensorList& table_starts,
                const OptionalTensorList& k_scales, const OptionalTensorList& v_scales,
                int64_t null_page, const OptionalTensor& status) {
  const Checks checks{"compact_kv", accepted_rows};
  CompactKvParams p{};
  p.accepted_rows = checks.index_table("accepted_rows", accepted_rows, "[B, P]", {-1, -1});
  p.num_requests = accepted_rows.size(0);
  p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", p.num_requests + 1);
  p.num_kept = checks.index("num_kept", num_kept, "[B]", p.num_requests);
  checks.at_least<size_t>("len(block_tables)", block_tables.size(), 1);
  const auto length = [&](const char* name, size_t got, size_t want) {
    if (got != want) checks.fail("len(", name, ") must be ", want, ", got ", got);
  };
  const size_t num_layers = k_caches.size();
  if (!v_caches.empty()) length("v_caches", v_caches.size(), num_layers);
  if (layer_groups) length("layer_groups", layer_groups->size(), num_layers);
  if (table_starts) length("table_starts", table_starts->size(), block_tables.size());
  if (k_scales) length("k_scales", k_scales->size(), num_layers);
  if (v_scales) length("v_scales", v_scales->size(), num_layers);

  const CompactKvTensors tensors{k_caches,     v_caches, block_tables, layer_groups,
                                 table_starts, k_scales, v_scales};
  std::vector<PageTable> groups = page_tables(checks, tensors, null_page);
  const int64_t num_state_rows = groups[0].block_table.num_rows;
  if (ctx_lens.has_value() == kv_lens.has_value()) {
    checks.fail("one of ctx_lens and kv_lens must be given, got ", ctx_lens ? "both" : "neither");
  }
  p.lengths = {ctx_lens ? checks.index("ctx_lens", ctx_lens, "[R]", num_state_rows)
                        : checks.index("kv_lens", kv_lens, "[R]", num_state_rows),
               kv_lens.has_value()};
  p.requests = {checks.index("req_rows", req_rows, "[B]", p.num_requests), num_state_rows};
  p.status = checks.status(status, "[B]", p.num_requests);
  std::vector<PagedLayer> layers;
  for (size_t idx = 0; idx < num_layers; ++idx) {
    layers.push_back(paged_layer(checks, tensors, idx, groups));
  }
  p.layers = layers.data();
  p.groups = groups.data();
  p.num_layers = static_cast<int64_t>(num_layers);
  p.num_groups = static_cast<int64_t>(groups.size());
  kRun(p, accepted_rows.get_device_index());
}

}  // namespace dflash
