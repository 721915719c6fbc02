// verify_tree, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const VerifyTreeParams&, const Tensor& tokens).
#pragma once

#include "verify/rejection_args.h"
#include "verify/tree_params.h"

namespace dflash {

template <auto kRun>
void verify_tree_out(
    const Tensor& tokens, const Tensor& logits, const Tensor& parents, const Tensor& positions,
    const Tensor& cu_verify, const OptionalTensor& req_rows, const OptionalTensor& temperature,
    const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p,
    const OptionalTensor& seeds, std::string order, const OptionalTensor& q,
    const OptionalTensor& q_ids, const OptionalTensor& draft_to_target,
    const OptionalTensor& draft_kind, std::string rule, bool replacement, double typical_eps,
    double typical_delta, int64_t max_path, bool probe, const OptionalTensor& verify_rows,
    double logit_scale, double softcap, int64_t vocab_start, std::optional<int64_t> vocab_size,
    const OptionalTensor& token_mask, const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
    const OptionalTensor& adj_ids, const OptionalTensor& adj_values, const OptionalTensor& status,
    const Tensor& emitted, const Tensor& num_accepted, const Tensor& num_emitted,
    const Tensor& accepted_rows, const Tensor& logprobs, const Tensor& accept_probs,
    const Tensor& coins, const Tensor& counters, const Tensor& weights) {
  const Checks checks{"verify_tree", tokens};
  VerifyTreeParams p{};
  check_logits(checks, logits,
               {verify_rows, logit_scale, softcap, vocab_start, vocab_size, token_mask, mask_rows,
                adj_cu, adj_ids, adj_values},
               p);
  check_rejection_inputs(
      checks, tokens,
      {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      {q, q_ids, draft_to_target, draft_kind}, p);
  p.parents = checks.index("parents", parents, "[Tv]", p.options.num_rows);
  checks.one_of("rule", rule, {"rrs", "traversal", "target_only", "typical"});
  p.rule = rule == "rrs"           ? TreeRule::kRecursive
           : rule == "traversal"   ? TreeRule::kTraversal
           : rule == "target_only" ? TreeRule::kTargetOnly
                                   : TreeRule::kTypical;
  checks.given("q", q.has_value(), "rule rrs or traversal", reads_draft_law(p.rule));
  p.has_replacement = replacement;
  checks.at_least("typical_eps", typical_eps, 0.0);
  checks.at_least("typical_delta", typical_delta, 0.0);
  p.typical_eps = static_cast<float>(typical_eps);
  p.typical_delta = static_cast<float>(typical_delta);
  check_rejection_outs(checks, max_path, probe, status,
                       {emitted, num_accepted, num_emitted, accepted_rows, logprobs, accept_probs,
                        coins, counters, weights},
                       p);
  kRun(p, tokens);
}

template <auto kRun>
Rejected verify_tree(
    const Tensor& tokens, const Tensor& logits, const Tensor& parents, const Tensor& positions,
    const Tensor& cu_verify, const OptionalTensor& req_rows, const OptionalTensor& temperature,
    const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p,
    const OptionalTensor& seeds, std::string order, const OptionalTensor& q,
    const OptionalTensor& q_ids, const OptionalTensor& draft_to_target,
    const OptionalTensor& draft_kind, std::string rule, bool replacement, double typical_eps,
    double typical_delta, int64_t max_path, bool probe, const OptionalTensor& verify_rows,
    double logit_scale, double softcap, int64_t vocab_start, std::optional<int64_t> vocab_size,
    const OptionalTensor& token_mask, const OptionalTensor& mask_rows, const OptionalTensor& adj_cu,
    const OptionalTensor& adj_ids, const OptionalTensor& adj_values, const OptionalTensor& status) {
  Rejected outs =
      new_rejection_outs(tokens, logits, cu_verify, max_path, probe, vocab_start, vocab_size);
  const auto& [emitted, num_accepted, num_emitted, accepted_rows, logprobs, accept_probs, coins,
               counters, weights] = outs;
  verify_tree_out<kRun>(
      tokens, logits, parents, positions, cu_verify, req_rows, temperature, top_k, top_p, min_p,
      seeds, std::move(order), q, q_ids, draft_to_target, draft_kind, std::move(rule), replacement,
      typical_eps, typical_delta, max_path, probe, verify_rows, logit_scale, softcap, vocab_start,
      vocab_size, token_mask, mask_rows, adj_cu, adj_ids, adj_values, status, emitted, num_accepted,
      num_emitted, accepted_rows, logprobs, accept_probs, coins, counters, weights);
  return outs;
}

}  // namespace dflash
