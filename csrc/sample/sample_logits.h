// sample_logits, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const SampleLogitsParams&, const Tensor& logits).
#pragma once

#include "sample/options.h"

namespace dflash {

template <auto kRun>
void sample_logits_out(const Tensor& logits, const Tensor& positions, const Tensor& cu_verify,
                       const OptionalTensor& req_rows, const OptionalTensor& temperature,
                       const OptionalTensor& top_k, const OptionalTensor& top_p,
                       const OptionalTensor& min_p, const OptionalTensor& seeds, std::string order,
                       const OptionalTensor& verify_rows, double logit_scale, double softcap,
                       int64_t vocab_start, std::optional<int64_t> vocab_size,
                       const OptionalTensor& token_mask, const OptionalTensor& mask_rows,
                       const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
                       const OptionalTensor& adj_values, const OptionalTensor& status,
                       const Tensor& ids, const Tensor& logprobs) {
  const Checks checks{"sample_logits", logits};
  SampleLogitsParams p{};
  p.logits = checks.array<2>("logits", logits, kFloats, "[num_rows, V]", {-1, -1});
  checks.last_contiguous("logits", logits);
  p.options = logit_options(checks,
                            {verify_rows, logit_scale, softcap, vocab_start, vocab_size, token_mask,
                             mask_rows, adj_cu, adj_ids, adj_values},
                            logits.size(0), logits.size(1));
  const int64_t rows = p.options.num_rows;
  p.sampling = sampling_options(
      checks, {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      rows);
  p.status = checks.status(status, "[Tv]", rows);
  p.ids = checks.index_out("ids", ids, "[Tv]", {rows});
  p.logprobs = checks.array_out<1>("logprobs", logprobs, {ScalarType::Float}, "[Tv]", {rows});
  kRun(p, logits);
}

template <auto kRun>
std::tuple<Tensor, Tensor> sample_logits(
    const Tensor& logits, const Tensor& positions, const Tensor& cu_verify,
    const OptionalTensor& req_rows, const OptionalTensor& temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p, const OptionalTensor& seeds,
    std::string order, const OptionalTensor& verify_rows, double logit_scale, double softcap,
    int64_t vocab_start, std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, const OptionalTensor& status) {
  const int64_t rows = positions.numel();
  std::tuple outs{new_tensor(logits, {rows}, ScalarType::Long),
                  new_tensor(logits, {rows}, ScalarType::Float)};
  sample_logits_out<kRun>(logits, positions, cu_verify, req_rows, temperature, top_k, top_p, min_p,
                          seeds, std::move(order), verify_rows, logit_scale, softcap, vocab_start,
                          vocab_size, token_mask, mask_rows, adj_cu, adj_ids, adj_values, status,
                          std::get<0>(outs), std::get<1>(outs));
  return outs;
}

}  // namespace dflash
