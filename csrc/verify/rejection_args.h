// What verify_chain and verify_tree have in common on the torch side: the checks of their
// arguments, and their outputs.
#pragma once

#include "sample/options.h"
#include "verify/chain_params.h"

namespace dflash {

struct DraftLawArgs {
  const OptionalTensor& q;
  const OptionalTensor& q_ids;
  const OptionalTensor& draft_to_target;
  const OptionalTensor& draft_kind;
};

inline void check_draft_law(const Checks& checks, const DraftLawArgs& args, RejectionParams& p) {
  const int64_t rows = p.options.num_rows;
  const auto& [q, q_ids, draft_to_target, draft_kind] = args;
  checks.given("q", q.has_value(), "q_ids", q_ids.has_value());
  checks.given("q", q.has_value(), "draft_to_target", draft_to_target.has_value());
  checks.given("q", q.has_value(), "draft_kind", draft_kind.has_value());
  p.draft_to_target = checks.index("draft_to_target", draft_to_target, "[Vd]", -1);
  p.draft_vocab_size = draft_to_target ? draft_to_target->size(0) : p.options.vocab_size;
  if (q_ids) {
    checks.tensor("q", *q, {ScalarType::Float}, "[Tv, K]", {rows, -1});
    checks.at_most("K", q->size(1), kMaxSparseQ);
    p.q_ids = checks.index_table("q_ids", *q_ids, "[Tv, K]", {rows, q->size(1)});
    p.q = checks.array<2>("q", q, {ScalarType::Float}, "[Tv, K]", {rows, q->size(1)});
  } else {
    p.q = checks.array<2>("q", q, {ScalarType::Float},
                          draft_to_target ? "[Tv, Vd]" : "[Tv, vocab_size]",
                          {rows, p.draft_vocab_size});
  }
  p.draft_kind = checks.index("draft_kind", draft_kind, "[B]", p.sampling.num_requests);
}

inline void check_logits(const Checks& checks, const Tensor& logits, const LogitArgs& logit_args,
                         RejectionParams& p) {
  p.logits = checks.array<2>("logits", logits, kFloats, "[num_rows, V]", {-1, -1});
  checks.last_contiguous("logits", logits);
  p.options = logit_options(checks, logit_args, logits.size(0), logits.size(1));
}

// After the options are there.
inline void check_rejection_inputs(const Checks& checks, const Tensor& tokens,
                                   const SamplingArgs& sampling_args, const DraftLawArgs& law_args,
                                   RejectionParams& p) {
  const int64_t rows = p.options.num_rows;
  p.tokens = checks.index("tokens", tokens, "[Tv]", rows);
  p.sampling = sampling_options(checks, sampling_args, rows);
  check_draft_law(checks, law_args, p);
}

struct RejectionOuts {
  const Tensor& emitted;
  const Tensor& num_accepted;
  const Tensor& num_emitted;
  const Tensor& accepted_rows;
  const Tensor& logprobs;
  const Tensor& accept_probs;
  const Tensor& coins;
  const Tensor& counters;
  const Tensor& weights;
};

inline void check_rejection_outs(const Checks& checks, int64_t max_path, bool probe,
                                 const OptionalTensor& status, const RejectionOuts& outs,
                                 RejectionParams& p) {
  checks.at_least<int64_t>("max_path", max_path, 0);
  p.max_path = max_path;
  const int64_t batch = p.sampling.num_requests, path = max_path + 1;
  p.status = checks.status(status, "[B]", batch);
  p.emitted = checks.index_out("emitted", outs.emitted, "[B, max_path + 1]", {batch, path});
  p.num_accepted = checks.index_out("num_accepted", outs.num_accepted, "[B]", {batch});
  p.num_emitted = checks.index_out("num_emitted", outs.num_emitted, "[B]", {batch});
  p.accepted_rows =
      checks.index_out("accepted_rows", outs.accepted_rows, "[B, max_path + 1]", {batch, path});
  p.logprobs = checks.array_out<2>("logprobs", outs.logprobs, {ScalarType::Float},
                                   "[B, max_path + 1]", {batch, path});
  p.is_probe = probe;
  const int64_t probed = probe ? p.options.num_rows : 0;
  p.accept_probs =
      checks.array_out<1>("accept_probs", outs.accept_probs, {ScalarType::Float}, "[Tv]", {probed});
  p.coins = checks.array_out<1>("coins", outs.coins, {ScalarType::Float}, "[Tv]", {probed});
  checks.tensor("counters", outs.counters, {ScalarType::Long}, "[Tv, 2, 4]", {probed, 2, 4});
  if (!outs.counters.is_contiguous())
    checks.fail("counters must be contiguous, got strides ", shape_name(outs.counters.strides()));
  p.counters = outs.counters.mutable_data_ptr<int64_t>();
  p.weights = checks.array_out<2>("weights", outs.weights, {ScalarType::Float}, "[Tv, vocab_size]",
                                  {probed, p.options.vocab_size});
}

using Rejected = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

inline Rejected new_rejection_outs(const Tensor& tokens, const OptionalTensor& logits,
                                   const Tensor& cu_verify, int64_t max_path, bool probe,
                                   int64_t vocab_start, std::optional<int64_t> vocab_size) {
  // Not checked yet, so only kept from being negative: the checks say what is wrong.
  const int64_t batch = std::max<int64_t>(cu_verify.numel() - 1, 0),
                path = std::max<int64_t>(max_path, 0) + 1;
  const int64_t rows = probe ? tokens.numel() : 0;
  const int64_t columns = logits && logits->dim() == 2 ? logits->size(1) : 0;
  const int64_t width = std::max<int64_t>(vocab_size.value_or(vocab_start + columns), 0);
  const auto ints = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(tokens, shape, ScalarType::Long);
  };
  const auto floats = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(tokens, shape, ScalarType::Float);
  };
  return {ints({batch, path}), ints({batch}),         ints({batch}),
          ints({batch, path}), floats({batch, path}), floats({rows}),
          floats({rows}),      ints({rows, 2, 4}),    floats({rows, width})};
}

}  // namespace dflash
