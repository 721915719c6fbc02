// lm_head_sample, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const LmHeadSampleParams&, const Tensor& h): h is there for its device.
#pragma once

#include "lm_head/options.h"
#include "lm_head/plan.h"

namespace dflash {

template <auto kRun>
void lm_head_sample_out(const Tensor& h, const Tensor& weight, const OptionalTensor& bias,
                        const Tensor& positions, const Tensor& cu_verify,
                        const OptionalTensor& req_rows, const OptionalTensor& temperature,
                        const OptionalTensor& top_k, const OptionalTensor& top_p,
                        const OptionalTensor& min_p, const OptionalTensor& seeds, std::string order,
                        std::optional<std::string> weight_format, const OptionalTensor& norm_weight,
                        double eps, bool round_logits, const OptionalTensor& verify_rows,
                        double logit_scale, double softcap, int64_t vocab_start,
                        std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
                        const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
                        const OptionalTensor& adj_ids, const OptionalTensor& adj_values,
                        int64_t max_fallback_rows, const OptionalTensor& workspace,
                        const OptionalTensor& status, const Tensor& ids, const Tensor& logprobs) {
  const Checks checks{"lm_head_sample", h};
  LmHeadSampleParams p{};
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
  p.sampling = sampling_options(
      checks, {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      rows);
  p.max_fallback_rows = max_fallback_rows;
  const bool may_fall_back = temperature && (top_k || top_p || min_p);
  const Tensor memory = fallback_memory(checks, h, workspace, max_fallback_rows,
                                        p.head.options.num_columns, may_fall_back);
  p.workspace = static_cast<float*>(memory.mutable_data_ptr());
  p.ids = checks.index_out("ids", ids, "[Tv]", {rows});
  p.logprobs = checks.array_out<1>("logprobs", logprobs, {ScalarType::Float}, "[Tv]", {rows});
  kRun(p, h);
}

template <auto kRun>
std::tuple<Tensor, Tensor> lm_head_sample(
    const Tensor& h, const Tensor& weight, const OptionalTensor& bias, const Tensor& positions,
    const Tensor& cu_verify, const OptionalTensor& req_rows, const OptionalTensor& temperature,
    const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p,
    const OptionalTensor& seeds, std::string order, std::optional<std::string> weight_format,
    const OptionalTensor& norm_weight, double eps, bool round_logits,
    const OptionalTensor& verify_rows, double logit_scale, double softcap, int64_t vocab_start,
    std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, int64_t max_fallback_rows, const OptionalTensor& workspace,
    const OptionalTensor& status) {
  const int64_t rows = head_rows(h, verify_rows);
  std::tuple outs{new_tensor(h, {rows}, ScalarType::Long),
                  new_tensor(h, {rows}, ScalarType::Float)};
  const auto& [ids, logprobs] = outs;
  lm_head_sample_out<kRun>(h, weight, bias, positions, cu_verify, req_rows, temperature, top_k,
                           top_p, min_p, seeds, std::move(order), std::move(weight_format),
                           norm_weight, eps, round_logits, verify_rows, logit_scale, softcap,
                           vocab_start, vocab_size, token_mask, mask_rows, adj_cu, adj_ids,
                           adj_values, max_fallback_rows, workspace, status, ids, logprobs);
  return outs;
}

}  // namespace dflash
