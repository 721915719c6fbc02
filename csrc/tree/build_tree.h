// build_tree, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const BuildTreeParams&, const Tensor& anchors).
#pragma once

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "tree/params.h"

namespace dflash {

template <auto kRun>
void build_tree_out(const Tensor& anchors, const Tensor& ids, const Tensor& scores,
                    int64_t max_nodes, const OptionalTensor& budgets,
                    const OptionalTensor& num_drafts, const OptionalTensor& status,
                    const Tensor& tokens, const Tensor& parents, const Tensor& path_scores,
                    const Tensor& cu_rows) {
  const Checks checks{"build_tree", anchors};
  BuildTreeParams p{};
  p.anchors = checks.index("anchors", anchors, "[B]", -1);
  p.num_requests = anchors.size(0);
  checks.tensor("ids", ids, {ScalarType::Int, ScalarType::Long}, "[B, D, K]",
                {p.num_requests, -1, -1});
  p.ids = ids.const_data_ptr();
  std::ranges::copy(ids.strides(), p.id_strides);
  p.ids_are_int64 = ids.scalar_type() == ScalarType::Long;
  p.num_slots = ids.size(1);
  p.num_candidates = ids.size(2);
  const auto strides = scores.strides();
  if (scores.dim() == 4) {
    checks.tensor("scores", scores, {ScalarType::Float}, "[B, D, K, K]",
                  {p.num_requests, p.num_slots, p.num_candidates, p.num_candidates});
    std::ranges::copy(strides, p.score_strides);
  } else {
    checks.tensor("scores", scores, {ScalarType::Float}, "[B, D, K]",
                  {p.num_requests, p.num_slots, p.num_candidates});
    p.score_strides[0] = strides[0];
    p.score_strides[1] = strides[1];
    p.score_strides[3] = strides[2];
  }
  p.scores = scores.const_data_ptr<float>();
  checks.at_least<int64_t>("max_nodes", max_nodes, 1);
  p.max_nodes = max_nodes;
  p.budgets = checks.index("budgets", budgets, "[B]", p.num_requests);
  p.num_drafts = checks.index("num_drafts", num_drafts, "[B]", p.num_requests);
  p.status = checks.status(status, "[B]", p.num_requests);
  const int64_t num_rows = p.num_requests * max_nodes;
  p.tokens = checks.index_out("tokens", tokens, "[B * max_nodes]", {num_rows});
  p.parents = checks.index_out("parents", parents, "[B * max_nodes]", {num_rows});
  p.path_scores = checks.array_out<1>("path_scores", path_scores, {ScalarType::Float},
                                      "[B * max_nodes]", {num_rows});
  p.cu_rows = checks.index_out("cu_rows", cu_rows, "[B + 1]", {p.num_requests + 1});
  kRun(p, anchors);
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor> build_tree(const Tensor& anchors, const Tensor& ids,
                                                      const Tensor& scores, int64_t max_nodes,
                                                      const OptionalTensor& budgets,
                                                      const OptionalTensor& num_drafts,
                                                      const OptionalTensor& status) {
  const int64_t batch = anchors.numel(), num_rows = batch * std::max<int64_t>(max_nodes, 0);
  std::tuple outs{new_tensor(anchors, {num_rows}, ScalarType::Long),
                  new_tensor(anchors, {num_rows}, ScalarType::Long),
                  new_tensor(anchors, {num_rows}, ScalarType::Float),
                  new_tensor(anchors, {batch + 1}, ScalarType::Long)};
  const auto& [tokens, parents, path_scores, cu_rows] = outs;
  build_tree_out<kRun>(anchors, ids, scores, max_nodes, budgets, num_drafts, status, tokens,
                       parents, path_scores, cu_rows);
  return outs;
}

}  // namespace dflash
