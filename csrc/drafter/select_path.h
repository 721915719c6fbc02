// select_path, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const SelectPathParams&, int32_t device_idx).
#pragma once

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "drafter/params.h"

namespace dflash {

template <auto kRun>
void select_path_out(const Tensor& values, const Tensor& cand_ids, const Tensor& hidden,
                     const Tensor& anchors, const Tensor& predecessor, const Tensor& successor,
                     const OptionalTensor& ctx_lens, const OptionalTensor& req_rows,
                     const OptionalTensor& num_drafts, const OptionalTensor& temperature,
                     const OptionalTensor& seeds, bool coupled, const OptionalTensor& status,
                     const Tensor& tokens, const Tensor& q) {
  const Checks checks{"select_path", values};
  SelectPathParams p{};
  p.values = checks.array<3>("values", values, {ScalarType::Float}, "[B, D, K]", {-1, -1, -1});
  p.num_requests = values.size(0);
  p.num_slots = values.size(1);
  p.num_candidates = values.size(2);
  checks.tensor("cand_ids", cand_ids, {ScalarType::Int, ScalarType::Long}, "[B, D, K]",
                {p.num_requests, p.num_slots, p.num_candidates});
  p.cand_ids = cand_ids.const_data_ptr();
  std::ranges::copy(cand_ids.strides(), p.id_strides);
  p.ids_are_int64 = cand_ids.scalar_type() == ScalarType::Long;
  p.hidden =
      checks.array<3>("hidden", hidden, kFloats, "[B, D, r]", {p.num_requests, p.num_slots, -1});
  p.rank = hidden.size(2);
  p.anchors = checks.index("anchors", anchors, "[B]", p.num_requests);
  p.predecessor = checks.array<2>("predecessor", predecessor, kFloats, "[V, r]", {-1, p.rank});
  p.vocab_size = predecessor.size(0);
  p.successor = checks.array<2>("successor", successor, {predecessor.scalar_type()}, "[V, r]",
                                {p.vocab_size, p.rank});
  checks.last_contiguous("hidden", hidden);
  checks.last_contiguous("predecessor", predecessor);
  checks.last_contiguous("successor", successor);
  if (temperature && !(ctx_lens && seeds)) {
    checks.fail("ctx_lens and seeds must be given with temperature, got ",
                ctx_lens ? "no seeds" : "no ctx_lens");
  }
  int64_t num_state_rows = p.num_requests;
  if (temperature) {
    checks.tensor("temperature", *temperature, {ScalarType::Float}, "[R]", {-1});
    num_state_rows = temperature->size(0);
    p.temperature = temperature->const_data_ptr<float>();
    p.temperature_stride = temperature->strides()[0];
    p.ctx_lens = checks.index("ctx_lens", ctx_lens, "[R]", num_state_rows);
    checks.tensor("seeds", *seeds, {ScalarType::Long}, "[R]", {num_state_rows});
    p.seeds = {seeds->const_data_ptr(), seeds->strides()[0], true};
  } else if (req_rows) {
    num_state_rows = INT64_MAX;  // no state is read: only who is padded matters
  }
  p.requests = {checks.index("req_rows", req_rows, "[B]", p.num_requests), num_state_rows};
  p.num_drafts = checks.index("num_drafts", num_drafts, "[B]", p.num_requests);
  p.is_coupled = coupled;
  p.status = checks.status(status, "[B]", p.num_requests);
  p.tokens = checks.index_out("tokens", tokens, "[B, D]", {p.num_requests, p.num_slots});
  p.q = checks.array_out<3>("q", q, {ScalarType::Float}, "[B, D, K]",
                            {p.num_requests, p.num_slots, p.num_candidates});
  kRun(p, values.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor> select_path(
    const Tensor& values, const Tensor& cand_ids, const Tensor& hidden, const Tensor& anchors,
    const Tensor& predecessor, const Tensor& successor, const OptionalTensor& ctx_lens,
    const OptionalTensor& req_rows, const OptionalTensor& num_drafts,
    const OptionalTensor& temperature, const OptionalTensor& seeds, bool coupled,
    const OptionalTensor& status) {
  // Not checked yet: select_path_out says what is wrong.
  const int64_t batch = values.dim() > 0 ? values.size(0) : 0;
  const int64_t slots = values.dim() > 1 ? values.size(1) : 0;
  std::tuple outs{new_tensor(values, {batch, slots}, ScalarType::Long),
                  new_tensor(values, values.sizes(), ScalarType::Float)};
  select_path_out<kRun>(values, cand_ids, hidden, anchors, predecessor, successor, ctx_lens,
                        req_rows, num_drafts, temperature, seeds, coupled, status,
                        std::get<0>(outs), std::get<1>(outs));
  return outs;
}

}  // namespace dflash
