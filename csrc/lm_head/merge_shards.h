// merge_shards, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const MergeShardsParams&, int32_t device_idx).
#pragma once

#include "common/check.h"
#include "lm_head/params.h"
#include "lm_head/plan.h"

namespace dflash {

template <auto kRun>
void merge_shards_out(const Tensor& keys, const Tensor& ids, const Tensor& lse,
                      const OptionalTensor& values, const OptionalTensor& status,
                      const Tensor& out_keys, const Tensor& out_ids, const Tensor& out_values,
                      const Tensor& out_lse) {
  const Checks checks{"merge_shards", keys};
  MergeShardsParams p{};
  p.keys = checks.array<3>("keys", keys, {ScalarType::Float}, "[S, Tv, K]", {-1, -1, -1});
  p.num_shards = keys.size(0);
  p.num_rows = keys.size(1);
  p.count = keys.size(2);
  checks.at_most("K", p.count, kMaxTopk);
  checks.tensor("ids", ids, {ScalarType::Int, ScalarType::Long}, "[S, Tv, K]",
                {p.num_shards, p.num_rows, p.count});
  p.ids = {ids.const_data_ptr(), {}, ids.scalar_type() == ScalarType::Long};
  std::ranges::copy(ids.strides(), p.ids.strides);
  p.lse = checks.array<2>("lse", lse, {ScalarType::Float}, "[S, Tv]", {p.num_shards, p.num_rows});
  p.values = checks.array<3>("values", values, {ScalarType::Float}, "[S, Tv, K]",
                             {p.num_shards, p.num_rows, p.count});
  p.has_values = values.has_value();
  p.status = checks.status(status, "[Tv]", p.num_rows);
  p.out_keys = checks.array_out<2>("out_keys", out_keys, {ScalarType::Float}, "[Tv, K]",
                                   {p.num_rows, p.count});
  p.out_ids = checks.index_out("out_ids", out_ids, "[Tv, K]", {p.num_rows, p.count});
  p.out_values =
      checks.array_out<2>("out_values", out_values, {ScalarType::Float},
                          values ? "[Tv, K]" : "[Tv, 0]", {p.num_rows, values ? p.count : 0});
  p.out_lse = checks.array_out<1>("out_lse", out_lse, {ScalarType::Float}, "[Tv]", {p.num_rows});
  kRun(p, keys.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor> merge_shards(const Tensor& keys, const Tensor& ids,
                                                        const Tensor& lse,
                                                        const OptionalTensor& values,
                                                        const OptionalTensor& status) {
  const bool is_cube = keys.dim() == 3;  // not checked yet
  const int64_t rows = is_cube ? keys.size(1) : 0, count = is_cube ? keys.size(2) : 0;
  std::tuple outs{new_tensor(keys, {rows, count}, ScalarType::Float),
                  new_tensor(keys, {rows, count}, ScalarType::Long),
                  new_tensor(keys, {rows, values ? count : 0}, ScalarType::Float),
                  new_tensor(keys, {rows}, ScalarType::Float)};
  const auto& [out_keys, out_ids, out_values, out_lse] = outs;
  merge_shards_out<kRun>(keys, ids, lse, values, status, out_keys, out_ids, out_values, out_lse);
  return outs;
}

}  // namespace dflash
