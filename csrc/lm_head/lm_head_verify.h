// lm_head_verify, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const LmHeadVerifyParams&, const Tensor& h): h is there for its device.
#pragma once

#include "lm_head/options.h"
#include "lm_head/plan.h"

namespace dflash {

template <auto kRun>
void lm_head_verify_out(
    const Tensor& h, const Tensor& weight, const Tensor& ids, const OptionalTensor& bias,
    const Tensor& positions, const Tensor& cu_verify, const OptionalTensor& req_rows,
    const OptionalTensor& temperature, const OptionalTensor& top_k, const OptionalTensor& top_p,
    const OptionalTensor& min_p, const OptionalTensor& seeds, std::string order,
    std::optional<std::string> weight_format, const OptionalTensor& norm_weight, double eps,
    bool round_logits, const OptionalTensor& verify_rows, double logit_scale, double softcap,
    int64_t vocab_start, std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, int64_t max_fallback_rows, const OptionalTensor& workspace,
    const OptionalTensor& status, const Tensor& values, const Tensor& lse,
    const Tensor& tempered_lse, const Tensor& rest_ids, const Tensor& rest_values,
    const Tensor& rest_keys, const Tensor& top_values, const Tensor& top_ids,
    const Tensor& covered) {
  const Checks checks{"lm_head_verify", h};
  LmHeadVerifyParams p{};
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
  checks.tensor("ids", ids, {ScalarType::Int, ScalarType::Long}, "[Tv, K]", {rows, -1});
  const int64_t count = ids.size(1);
  checks.at_most("K", count, kMaxTopk);
  p.ids = checks.index_table("ids", ids, "[Tv, K]", {rows, count});
  p.sampling = sampling_options(
      checks, {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      rows);
  p.max_fallback_rows = max_fallback_rows;
  const bool may_fall_back = temperature && (top_k || top_p || min_p);
  const Tensor memory = fallback_memory(checks, h, workspace, max_fallback_rows,
                                        p.head.options.num_columns, may_fall_back);
  p.workspace = static_cast<float*>(memory.mutable_data_ptr());
  p.values = checks.array_out<2>("values", values, {ScalarType::Float}, "[Tv, K]", {rows, count});
  p.lse = checks.array_out<1>("lse", lse, {ScalarType::Float}, "[Tv]", {rows});
  p.tempered_lse =
      checks.array_out<1>("tempered_lse", tempered_lse, {ScalarType::Float}, "[Tv]", {rows});
  p.rest_ids = checks.index_out("rest_ids", rest_ids, "[Tv]", {rows});
  p.rest_values =
      checks.array_out<1>("rest_values", rest_values, {ScalarType::Float}, "[Tv]", {rows});
  p.rest_keys = checks.array_out<1>("rest_keys", rest_keys, {ScalarType::Float}, "[Tv]", {rows});
  p.top_values = checks.array_out<2>("top_values", top_values, {ScalarType::Float}, "[Tv, 64]",
                                     {rows, kMaxTopk});
  p.top_ids = checks.index_out("top_ids", top_ids, "[Tv, 64]", {rows, kMaxTopk});
  checks.tensor("covered", covered, {ScalarType::Bool}, "[Tv]", {rows});
  p.covered = covered.mutable_data_ptr<bool>();
  p.covered_stride = covered.strides()[0];
  kRun(p, h);
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lm_head_verify(
    const Tensor& h, const Tensor& weight, const Tensor& ids, const OptionalTensor& bias,
    const Tensor& positions, const Tensor& cu_verify, const OptionalTensor& req_rows,
    const OptionalTensor& temperature, const OptionalTensor& top_k, const OptionalTensor& top_p,
    const OptionalTensor& min_p, const OptionalTensor& seeds, std::string order,
    std::optional<std::string> weight_format, const OptionalTensor& norm_weight, double eps,
    bool round_logits, const OptionalTensor& verify_rows, double logit_scale, double softcap,
    int64_t vocab_start, std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, int64_t max_fallback_rows, const OptionalTensor& workspace,
    const OptionalTensor& status) {
  const int64_t rows = head_rows(h, verify_rows);
  const int64_t count = ids.dim() == 2 ? ids.size(1) : 0;  // not checked yet
  const auto ints = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(h, shape, ScalarType::Long);
  };
  const auto floats = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(h, shape, ScalarType::Float);
  };
  std::tuple outs{floats({rows, count}),
                  floats({rows}),
                  floats({rows}),
                  ints({rows}),
                  floats({rows}),
                  floats({rows}),
                  floats({rows, kMaxTopk}),
                  ints({rows, kMaxTopk}),
                  new_tensor(h, {rows}, ScalarType::Bool)};
  const auto& [values, lse, tempered_lse, rest_ids, rest_values, rest_keys, top_values, top_ids,
               covered] = outs;
  lm_head_verify_out<kRun>(
      h, weight, ids, bias, positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds,
      std::move(order), std::move(weight_format), norm_weight, eps, round_logits, verify_rows,
      logit_scale, softcap, vocab_start, vocab_size, token_mask, mask_rows, adj_cu, adj_ids,
      adj_values, max_fallback_rows, workspace, status, values, lse, tempered_lse, rest_ids,
      rest_values, rest_keys, top_values, top_ids, covered);
  return outs;
}

}  // namespace dflash
