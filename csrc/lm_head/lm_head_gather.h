// lm_head_gather, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const LmHeadGatherParams&, const Tensor& h): h is there for its device.
#pragma once

#include "lm_head/options.h"
#include "lm_head/plan.h"

namespace dflash {

template <auto kRun>
void lm_head_gather_out(const Tensor& h, const Tensor& weight, const Tensor& ids,
                        const OptionalTensor& bias, const OptionalTensor& cu_verify,
                        const OptionalTensor& req_rows, const OptionalTensor& temperature,
                        std::optional<std::string> weight_format, const OptionalTensor& norm_weight,
                        double eps, bool round_logits, const OptionalTensor& verify_rows,
                        double logit_scale, double softcap, int64_t vocab_start,
                        std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
                        const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
                        const OptionalTensor& adj_ids, const OptionalTensor& adj_values,
                        const OptionalTensor& status, const Tensor& logprobs,
                        const Tensor& tempered, const Tensor& ranks, const Tensor& lse) {
  const Checks checks{"lm_head_gather", h};
  LmHeadGatherParams p{};
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
  checks.given("cu_verify", cu_verify.has_value(), "temperature", temperature.has_value());
  checks.given("cu_verify", cu_verify.has_value(), "req_rows", req_rows.has_value());
  if (cu_verify) {
    p.sampling.cu_verify = checks.index("cu_verify", *cu_verify, "[B + 1]", -1);
    checks.at_least<int64_t>("len(cu_verify)", cu_verify->size(0), 1);
    p.sampling.num_requests = cu_verify->size(0) - 1;
    p.sampling.requests.req_rows =
        checks.index("req_rows", req_rows, "[B]", p.sampling.num_requests);
    p.sampling.temperature =
        checks.array<1>("temperature", temperature, {ScalarType::Float}, "[R]", {-1});
    p.sampling.requests.num_state_rows =
        temperature ? temperature->size(0) : std::numeric_limits<int64_t>::max();
  }
  p.logprobs =
      checks.array_out<2>("logprobs", logprobs, {ScalarType::Float}, "[Tv, K]", {rows, count});
  p.tempered =
      checks.array_out<2>("tempered", tempered, {ScalarType::Float}, "[Tv, K]", {rows, count});
  p.ranks = checks.index_out("ranks", ranks, "[Tv, K]", {rows, count});
  p.lse = checks.array_out<1>("lse", lse, {ScalarType::Float}, "[Tv]", {rows});
  kRun(p, h);
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor> lm_head_gather(
    const Tensor& h, const Tensor& weight, const Tensor& ids, const OptionalTensor& bias,
    const OptionalTensor& cu_verify, const OptionalTensor& req_rows,
    const OptionalTensor& temperature, std::optional<std::string> weight_format,
    const OptionalTensor& norm_weight, double eps, bool round_logits,
    const OptionalTensor& verify_rows, double logit_scale, double softcap, int64_t vocab_start,
    std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, const OptionalTensor& status) {
  const int64_t rows = head_rows(h, verify_rows);
  const int64_t count = ids.dim() == 2 ? ids.size(1) : 0;  // not checked yet
  std::tuple outs{new_tensor(h, {rows, count}, ScalarType::Float),
                  new_tensor(h, {rows, count}, ScalarType::Float),
                  new_tensor(h, {rows, count}, ScalarType::Long),
                  new_tensor(h, {rows}, ScalarType::Float)};
  const auto& [logprobs, tempered, ranks, lse] = outs;
  lm_head_gather_out<kRun>(h, weight, ids, bias, cu_verify, req_rows, temperature,
                           std::move(weight_format), norm_weight, eps, round_logits, verify_rows,
                           logit_scale, softcap, vocab_start, vocab_size, token_mask, mask_rows,
                           adj_cu, adj_ids, adj_values, status, logprobs, tempered, ranks, lse);
  return outs;
}

}  // namespace dflash
