// tree_to_paths, tree_from_retrieve and tree_from_mask, torch side: checks and outputs, the same
// for every backend. A backend is a function void run(const ...Params&, int32_t device_idx).
#pragma once

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "tree/params.h"

namespace dflash {

template <auto kRun>
void tree_to_paths_out(const Tensor& parents, const Tensor& cu_rows, int64_t max_paths,
                       int64_t max_path, const OptionalTensor& status, const Tensor& paths,
                       const Tensor& num_paths) {
  const Checks checks{"tree_to_paths", parents};
  TreeToPathsParams p{};
  p.parents = checks.index("parents", parents, "[T]", -1);
  p.num_rows = parents.size(0);
  p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", -1);
  checks.at_least<int64_t>("len(cu_rows)", cu_rows.size(0), 1);
  p.num_requests = cu_rows.size(0) - 1;
  checks.at_least<int64_t>("max_paths", max_paths, 0);
  checks.at_least<int64_t>("max_path", max_path, 0);
  p.max_paths = max_paths;
  p.path_length = max_path + 1;
  p.status = checks.status(status, "[B]", p.num_requests);
  checks.tensor("paths", paths, {ScalarType::Int, ScalarType::Long}, "[B, max_paths, max_path + 1]",
                {p.num_requests, max_paths, p.path_length});
  p.paths = {paths.mutable_data_ptr(), paths.strides()[1], paths.strides()[2],
             paths.scalar_type() == ScalarType::Long};
  p.request_stride = paths.strides()[0];
  p.num_paths = checks.index_out("num_paths", num_paths, "[B]", {p.num_requests});
  kRun(p, parents.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor> tree_to_paths(const Tensor& parents, const Tensor& cu_rows,
                                         int64_t max_paths, int64_t max_path,
                                         const OptionalTensor& status) {
  // Not checked yet, so only kept from being negative: the .out overload says what is wrong.
  const int64_t batch = std::max<int64_t>(cu_rows.numel() - 1, 0);
  std::tuple outs{
      new_tensor(parents,
                 {batch, std::max<int64_t>(max_paths, 0), std::max<int64_t>(max_path, 0) + 1},
                 ScalarType::Long),
      new_tensor(parents, {batch}, ScalarType::Long)};
  tree_to_paths_out<kRun>(parents, cu_rows, max_paths, max_path, status, std::get<0>(outs),
                          std::get<1>(outs));
  return outs;
}

template <auto kRun>
void tree_from_retrieve_out(const Tensor& next_token, const Tensor& next_sibling,
                            const OptionalTensor& status, const Tensor& parents) {
  const Checks checks{"tree_from_retrieve", next_token};
  TreeFromRetrieveParams p{};
  p.next_token = checks.index_table("next_token", next_token, "[B, N]", {-1, -1});
  p.num_requests = next_token.size(0);
  p.num_nodes = next_token.size(1);
  p.next_sibling =
      checks.index_table("next_sibling", next_sibling, "[B, N]", {p.num_requests, p.num_nodes});
  p.status = checks.status(status, "[B]", p.num_requests);
  p.parents = checks.index_out("parents", parents, "[B, N]", {p.num_requests, p.num_nodes});
  kRun(p, next_token.get_device_index());
}

template <auto kRun>
Tensor tree_from_retrieve(const Tensor& next_token, const Tensor& next_sibling,
                          const OptionalTensor& status) {
  Tensor parents = new_tensor(next_token, next_token.sizes(), ScalarType::Long);
  tree_from_retrieve_out<kRun>(next_token, next_sibling, status, parents);
  return parents;
}

template <auto kRun>
void tree_from_mask_out(const Tensor& mask, const Tensor& cu_rows, const OptionalTensor& status,
                        const Tensor& parents) {
  const Checks checks{"tree_from_mask", mask};
  TreeFromMaskParams p{};
  checks.tensor("mask", mask, {ScalarType::Int, ScalarType::Bool}, "[T, W] or [T, N]", {-1, -1});
  const bool is_bits = mask.scalar_type() == ScalarType::Int;
  p.mask = {mask.const_data_ptr(), mask.strides()[0], mask.strides()[1],
            mask.size(1) * (is_bits ? 32 : 1), is_bits};
  p.num_rows = mask.size(0);
  p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", -1);
  checks.at_least<int64_t>("len(cu_rows)", cu_rows.size(0), 1);
  p.num_requests = cu_rows.size(0) - 1;
  p.status = checks.status(status, "[B]", p.num_requests);
  p.parents = checks.index_out("parents", parents, "[T]", {p.num_rows});
  kRun(p, mask.get_device_index());
}

template <auto kRun>
Tensor tree_from_mask(const Tensor& mask, const Tensor& cu_rows, const OptionalTensor& status) {
  const int64_t num_rows = mask.dim() > 0 ? mask.size(0) : 0;
  Tensor parents = new_tensor(mask, {num_rows}, ScalarType::Long);
  tree_from_mask_out<kRun>(mask, cu_rows, status, parents);
  return parents;
}

}  // namespace dflash
