// verify_chain, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const VerifyChainParams&, const Tensor& tokens).
#pragma once

#include "verify/record_args.h"
#include "verify/rejection_args.h"

namespace dflash {

template <auto kRun>
void verify_chain_out(
    const Tensor& tokens, const OptionalTensor& logits, const OptionalTensor& record_ids,
    const OptionalTensorList& record, const Tensor& positions, const Tensor& cu_verify,
    const OptionalTensor& req_rows, const OptionalTensor& temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p, const OptionalTensor& seeds,
    std::string order, const OptionalTensor& q, const OptionalTensor& q_ids,
    const OptionalTensor& draft_to_target, const OptionalTensor& draft_kind, std::string rule,
    int64_t max_path, bool probe, const OptionalTensor& verify_rows, double logit_scale,
    double softcap, int64_t vocab_start, std::optional<int64_t> vocab_size,
    const OptionalTensor& token_mask, const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
    const OptionalTensor& adj_ids, const OptionalTensor& adj_values, const OptionalTensor& status,
    const Tensor& emitted, const Tensor& num_accepted, const Tensor& num_emitted,
    const Tensor& accepted_rows, const Tensor& logprobs, const Tensor& accept_probs,
    const Tensor& coins, const Tensor& counters, const Tensor& weights) {
  const Checks checks{"verify_chain", tokens};
  VerifyChainParams p{};
  const LogitArgs logit_args{verify_rows, logit_scale, softcap, vocab_start, vocab_size,
                             token_mask,  mask_rows,   adj_cu,  adj_ids,     adj_values};
  if (logits) {
    if (record) checks.fail("record must be None with logits, got a record");
    check_logits(checks, *logits, logit_args, p);
  } else {
    check_record(checks, tokens, record_ids, record, logit_args, p);
    checks.given("q_ids", q_ids.has_value(), "q and a record", q.has_value());
  }
  check_rejection_inputs(
      checks, tokens,
      {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      {q, q_ids, draft_to_target, draft_kind}, p);
  checks.one_of("rule", rule, {"token", "block"});
  p.is_block = rule == "block";
  check_rejection_outs(checks, max_path, probe, status,
                       {emitted, num_accepted, num_emitted, accepted_rows, logprobs, accept_probs,
                        coins, counters, weights},
                       p);
  kRun(p, tokens);
}

template <auto kRun>
Rejected verify_chain(
    const Tensor& tokens, const OptionalTensor& logits, const OptionalTensor& record_ids,
    const OptionalTensorList& record, const Tensor& positions, const Tensor& cu_verify,
    const OptionalTensor& req_rows, const OptionalTensor& temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p, const OptionalTensor& seeds,
    std::string order, const OptionalTensor& q, const OptionalTensor& q_ids,
    const OptionalTensor& draft_to_target, const OptionalTensor& draft_kind, std::string rule,
    int64_t max_path, bool probe, const OptionalTensor& verify_rows, double logit_scale,
    double softcap, int64_t vocab_start, std::optional<int64_t> vocab_size,
    const OptionalTensor& token_mask, const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
    const OptionalTensor& adj_ids, const OptionalTensor& adj_values, const OptionalTensor& status) {
  Rejected outs =
      new_rejection_outs(tokens, logits, cu_verify, max_path, probe, vocab_start, vocab_size);
  const auto& [emitted, num_accepted, num_emitted, accepted_rows, logprobs, accept_probs, coins,
               counters, weights] = outs;
  verify_chain_out<kRun>(tokens, logits, record_ids, record, positions, cu_verify, req_rows,
                         temperature, top_k, top_p, min_p, seeds, std::move(order), q, q_ids,
                         draft_to_target, draft_kind, std::move(rule), max_path, probe, verify_rows,
                         logit_scale, softcap, vocab_start, vocab_size, token_mask, mask_rows,
                         adj_cu, adj_ids, adj_values, status, emitted, num_accepted, num_emitted,
                         accepted_rows, logprobs, accept_probs, coins, counters, weights);
  return outs;
}

}  // namespace dflash
