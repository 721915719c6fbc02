// sample_candidates, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const SampleCandidatesParams&, int32_t device_idx).
#pragma once

#include "sample/options.h"
#include "sample/plan.h"

namespace dflash {

template <auto kRun>
void sample_candidates_out(const Tensor& values, const Tensor& cand_ids, const Tensor& lse,
                           const Tensor& positions, const Tensor& cu_verify,
                           const OptionalTensor& req_rows, const OptionalTensor& temperature,
                           const OptionalTensor& top_k, const OptionalTensor& top_p,
                           const OptionalTensor& min_p, const OptionalTensor& seeds,
                           std::string order, std::optional<int64_t> vocab_size,
                           const OptionalTensor& status, const Tensor& ids, const Tensor& logprobs,
                           const Tensor& covered) {
  const Checks checks{"sample_candidates", values};
  SampleCandidatesParams p{};
  p.values = checks.array<2>("values", values, {ScalarType::Float}, "[Tv, K]", {-1, -1});
  p.num_rows = values.size(0);
  p.num_candidates = values.size(1);
  checks.at_most("K", p.num_candidates, kMaxCandidates);
  p.cand_ids = checks.index_table("cand_ids", cand_ids, "[Tv, K]", {p.num_rows, p.num_candidates});
  p.lse = checks.array<1>("lse", lse, {ScalarType::Float}, "[Tv]", {p.num_rows});
  p.sampling = sampling_options(
      checks, {positions, cu_verify, req_rows, temperature, top_k, top_p, min_p, seeds, order},
      p.num_rows);
  p.vocab_size = vocab_size.value_or(kMaxId);
  checks.at_least<int64_t>("vocab_size", p.vocab_size, 0);
  checks.at_most("vocab_size", p.vocab_size, kMaxId);
  p.status = checks.status(status, "[Tv]", p.num_rows);
  p.ids = checks.index_out("ids", ids, "[Tv]", {p.num_rows});
  p.logprobs = checks.array_out<1>("logprobs", logprobs, {ScalarType::Float}, "[Tv]", {p.num_rows});
  checks.tensor("covered", covered, {ScalarType::Bool}, "[Tv]", {p.num_rows});
  p.covered = covered.mutable_data_ptr<bool>();
  p.covered_stride = covered.strides()[0];
  kRun(p, values.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor> sample_candidates(
    const Tensor& values, const Tensor& cand_ids, const Tensor& lse, const Tensor& positions,
    const Tensor& cu_verify, const OptionalTensor& req_rows, const OptionalTensor& temperature,
    const OptionalTensor& top_k, const OptionalTensor& top_p, const OptionalTensor& min_p,
    const OptionalTensor& seeds, std::string order, std::optional<int64_t> vocab_size,
    const OptionalTensor& status) {
  const int64_t rows = positions.numel();
  std::tuple outs{new_tensor(values, {rows}, ScalarType::Long),
                  new_tensor(values, {rows}, ScalarType::Float),
                  new_tensor(values, {rows}, ScalarType::Bool)};
  const auto& [ids, logprobs, covered] = outs;
  sample_candidates_out<kRun>(values, cand_ids, lse, positions, cu_verify, req_rows, temperature,
                              top_k, top_p, min_p, seeds, std::move(order), vocab_size, status, ids,
                              logprobs, covered);
  return outs;
}

}  // namespace dflash
