// verify_chain, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const VerifyChainParams&, int32_t device_idx).
#pragma once

#include "sample/options.h"
#include "verify/chain_params.h"

namespace dflash {

inline void check_draft_law(const Checks& checks, const OptionalTensor& q,
                            const OptionalTensor& q_ids, const OptionalTensor& draft_kind,
                            VerifyChainParams& p) {
  const int64_t rows = p.options.num_rows;
  checks.given("q", q.has_value(), "q_ids", q_ids.has_value());
  checks.given("q", q.has_value(), "draft_kind", draft_kind.has_value());
  if (q_ids) {
    checks.tensor("q", *q, {ScalarType::Float}, "[Tv, K]", {rows, -1});
    checks.at_most("K", q->size(1), kMaxSparseQ);
    p.q_ids = checks.index_table("q_ids", *q_ids, "[Tv, K]", {rows, q->size(1)});
    p.q = checks.array<2>("q", q, {ScalarType::Float}, "[Tv, K]", {rows, q->size(1)});
  } else {
    p.q = checks.array<2>("q", q, {ScalarType::Float}, "[Tv, vocab_size]",
                          {rows, p.options.vocab_size});
  }
  p.draft_kind = checks.index("draft_kind", draft_kind, "[B]", p.sampling.num_requests);
}

template <auto kRun>
void verify_chain_out(
    const Tensor& tokens, const Tensor& logits, const Tensor& positions, const Tensor& cu_verify,
    const OptionalTensor& req_rows, const OptionalTensor& temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p, const OptionalTensor& seeds,
    std::string order, const OptionalTensor& q, const OptionalTensor& q_ids,
    const OptionalTensor& draft_kind, std::string rule, int64_t max_path, bool probe,
    const OptionalTensor& verify_rows, double logit_scale, double softcap, int64_t vocab_start,
    std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, const OptionalTensor& status, const Tensor& emitted,
    const Tensor& num_accepted, const Tensor& num_emitted, const Tensor& accepted_rows,
    const Tensor& logprobs, const Tensor& accept_probs, const Tensor& coins, const Tensor& counters,
    const Tensor& weights) {
  const Checks checks{"verify_chain", tokens};
  VerifyChainParams p{};
  p.logits = checks.array<2>("logits", logits, kFloats, "[num_rows, V]", {-1, -1});
  checks.last_contiguous("logits", logits);
  p.options = logit_options(checks,
                            {verify_rows, logit_scale, softcap, vocab_start, vocab_size, token_mask,
                             mask_rows, adj_cu, adj_ids, adj_values},
                            logits.size(0), logits.size(1));
  const int64_t rows = p.options.num_rows;
  p.tokens = checks.index("tokens", tokens, "[Tv]", rows);
  p.sampling = sampling_options(
      checks, {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      rows);
  check_draft_law(checks, q, q_ids, draft_kind, p);
  checks.one_of("rule", rule, {"token", "block"});
  p.is_block = rule == "block";
  checks.at_least<int64_t>("max_path", max_path, 0);
  p.max_path = max_path;
  const int64_t batch = p.sampling.num_requests, path = max_path + 1;
  p.status = checks.status(status, "[B]", batch);
  p.emitted = checks.index_out("emitted", emitted, "[B, max_path + 1]", {batch, path});
  p.num_accepted = checks.index_out("num_accepted", num_accepted, "[B]", {batch});
  p.num_emitted = checks.index_out("num_emitted", num_emitted, "[B]", {batch});
  p.accepted_rows =
      checks.index_out("accepted_rows", accepted_rows, "[B, max_path + 1]", {batch, path});
  p.logprobs = checks.array_out<2>("logprobs", logprobs, {ScalarType::Float}, "[B, max_path + 1]",
                                   {batch, path});
  p.is_probe = probe;
  const int64_t probed = probe ? rows : 0;
  p.accept_probs =
      checks.array_out<1>("accept_probs", accept_probs, {ScalarType::Float}, "[Tv]", {probed});
  p.coins = checks.array_out<1>("coins", coins, {ScalarType::Float}, "[Tv]", {probed});
  checks.tensor("counters", counters, {ScalarType::Long}, "[Tv, 2, 4]", {probed, 2, 4});
  if (!counters.is_contiguous())
    checks.fail("counters must be contiguous, got strides ", shape_name(counters.strides()));
  p.counters = counters.mutable_data_ptr<int64_t>();
  p.weights = checks.array_out<2>("weights", weights, {ScalarType::Float}, "[Tv, vocab_size]",
                                  {probed, p.options.vocab_size});
  kRun(p, tokens.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> verify_chain(
    const Tensor& tokens, const Tensor& logits, const Tensor& positions, const Tensor& cu_verify,
    const OptionalTensor& req_rows, const OptionalTensor& temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p, const OptionalTensor& seeds,
    std::string order, const OptionalTensor& q, const OptionalTensor& q_ids,
    const OptionalTensor& draft_kind, std::string rule, int64_t max_path, bool probe,
    const OptionalTensor& verify_rows, double logit_scale, double softcap, int64_t vocab_start,
    std::optional<int64_t> vocab_size, const OptionalTensor& token_mask,
    const OptionalTensor& mask_rows, const OptionalTensor& adj_cu, const OptionalTensor& adj_ids,
    const OptionalTensor& adj_values, const OptionalTensor& status) {
  // Not checked yet, so only kept from being negative: verify_chain_out says what is wrong.
  const int64_t batch = std::max<int64_t>(cu_verify.numel() - 1, 0),
                path = std::max<int64_t>(max_path, 0) + 1;
  const int64_t rows = probe ? tokens.numel() : 0;
  const int64_t columns = logits.dim() == 2 ? logits.size(1) : 0;
  const int64_t width = std::max<int64_t>(vocab_size.value_or(vocab_start + columns), 0);
  const auto ints = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(tokens, shape, ScalarType::Long);
  };
  const auto floats = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(tokens, shape, ScalarType::Float);
  };
  std::tuple outs{ints({batch, path}), ints({batch}),         ints({batch}),
                  ints({batch, path}), floats({batch, path}), floats({rows}),
                  floats({rows}),      ints({rows, 2, 4}),    floats({rows, width})};
  const auto& [emitted, num_accepted, num_emitted, accepted_rows, logprobs, accept_probs, coins,
               counters, weights] = outs;
  verify_chain_out<kRun>(tokens, logits, positions, cu_verify, req_rows, temperature, top_k, top_p,
                         min_p, seeds, std::move(order), q, q_ids, draft_kind, std::move(rule),
                         max_path, probe, verify_rows, logit_scale, softcap, vocab_start,
                         vocab_size, token_mask, mask_rows, adj_cu, adj_ids, adj_values, status,
                         emitted, num_accepted, num_emitted, accepted_rows, logprobs, accept_probs,
                         coins, counters, weights);
  return outs;
}

}  // namespace dflash
