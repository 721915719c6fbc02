// lm_head_topk, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const LmHeadTopkParams&, const Tensor& h): h is there for its device.
#pragma once

#include "lm_head/options.h"
#include "lm_head/plan.h"

namespace dflash {

template <auto kRun>
void lm_head_topk_out(const Tensor& h, const Tensor& weight, const OptionalTensor& bias, int64_t k,
                      std::optional<std::string> weight_format, const OptionalTensor& norm_weight,
                      double eps, bool round_logits, const OptionalTensor& verify_rows,
                      double logit_scale, double softcap, int64_t vocab_start,
                      std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
                      const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
                      const OptionalTensor& adj_ids, const OptionalTensor& adj_values,
                      const OptionalTensor& status, const Tensor& values, const Tensor& ids,
                      const Tensor& lse) {
  const Checks checks{"lm_head_topk", h};
  LmHeadTopkParams p{};
  p.head = head_params(checks, {h,
                                weight,
                                bias,
                                weight_format,
                                norm_weight,
                                eps,
                                round_logits,
                                status,
                                {verify_rows, logit_scale, softcap, vocab_start, vocab_size,
                                 token_mask, mask_rows, adj_cu, adj_ids, adj_values}});
  const int64_t rows = p.head.options.num_rows;
  checks.at_least<int64_t>("k", k, 1);
  checks.at_most("k", k, kMaxTopk);
  p.k = k;
  p.values = checks.array_out<2>("values", values, {ScalarType::Float}, "[Tv, k]", {rows, k});
  p.ids = checks.index_out("ids", ids, "[Tv, k]", {rows, k});
  p.lse = checks.array_out<1>("lse", lse, {ScalarType::Float}, "[Tv]", {rows});
  kRun(p, h);
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor> lm_head_topk(
    const Tensor& h, const Tensor& weight, const OptionalTensor& bias, int64_t k,
    std::optional<std::string> weight_format, const OptionalTensor& norm_weight, double eps,
    bool round_logits, const OptionalTensor& verify_rows, double logit_scale, double softcap,
    int64_t vocab_start, std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, const OptionalTensor& status) {
  const int64_t rows = head_rows(h, verify_rows);
  const int64_t width = std::clamp<int64_t>(k, 0, kMaxTopk);  // not checked yet
  std::tuple outs{new_tensor(h, {rows, width}, ScalarType::Float),
                  new_tensor(h, {rows, width}, ScalarType::Long),
                  new_tensor(h, {rows}, ScalarType::Float)};
  const auto& [values, ids, lse] = outs;
  lm_head_topk_out<kRun>(h, weight, bias, k, std::move(weight_format), norm_weight, eps,
                         round_logits, verify_rows, logit_scale, softcap, vocab_start, vocab_size,
                         token_mask, mask_rows, adj_cu, adj_ids, adj_values, status, values, ids,
                         lse);
  return outs;
}

}  // namespace dflash
