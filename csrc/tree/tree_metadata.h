// tree_metadata, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const TreeMetadataParams&, int32_t device_idx).
#pragma once

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "tree/params.h"

namespace dflash {

inline MaskOut mask_out(const Checks& checks, const Tensor& t, const char* dims, int64_t num_rows,
                        int64_t num_words) {
  checks.tensor("mask_bits", t, {ScalarType::Int}, dims, {num_rows, num_words});
  return {static_cast<uint32_t*>(t.mutable_data_ptr()), t.strides()[0], t.strides()[1], num_words};
}

template <auto kRun>
void tree_metadata_out(const Tensor& parents, const Tensor& cu_rows, int64_t max_rows,
                       const OptionalTensor& tree_nodes, const OptionalTensor& status,
                       const Tensor& depth, const Tensor& mask_bits, const Tensor& first_child,
                       const Tensor& next_sibling) {
  const Checks checks{"tree_metadata", parents};
  TreeMetadataParams p{};
  p.parents = checks.index("parents", parents, "[T]", -1);
  p.num_rows = parents.size(0);
  p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", -1);
  checks.at_least<int64_t>("len(cu_rows)", cu_rows.size(0), 1);
  p.num_requests = cu_rows.size(0) - 1;
  checks.at_least<int64_t>("max_rows", max_rows, 1);
  p.max_rows = max_rows;
  p.tree_nodes = checks.index("tree_nodes", tree_nodes, "[B]", p.num_requests);
  p.status = checks.status(status, "[B]", p.num_requests);
  p.depth = checks.index_out("depth", depth, "[T]", {p.num_rows});
  p.mask =
      mask_out(checks, mask_bits, "[T, ceil(max_rows / 32)]", p.num_rows, (max_rows + 31) / 32);
  p.first_child = checks.index_out("first_child", first_child, "[T]", {p.num_rows});
  p.next_sibling = checks.index_out("next_sibling", next_sibling, "[T]", {p.num_rows});
  kRun(p, parents.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor> tree_metadata(const Tensor& parents,
                                                         const Tensor& cu_rows, int64_t max_rows,
                                                         const OptionalTensor& tree_nodes,
                                                         const OptionalTensor& status) {
  const auto ints = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(parents, shape, ScalarType::Int);
  };
  const int64_t num_rows = parents.numel();
  std::tuple outs{ints({num_rows}), ints({num_rows, (std::max<int64_t>(max_rows, 0) + 31) / 32}),
                  ints({num_rows}), ints({num_rows})};
  const auto& [depth, mask_bits, first_child, next_sibling] = outs;
  tree_metadata_out<kRun>(parents, cu_rows, max_rows, tree_nodes, status, depth, mask_bits,
                          first_child, next_sibling);
  return outs;
}

}  // namespace dflash
