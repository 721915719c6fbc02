// accept_match, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const AcceptMatchParams&, int32_t device_idx).
#pragma once

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "verify/params.h"

namespace dflash {

template <auto kRun>
void accept_match_out(const Tensor& tokens, const Tensor& cu_verify, const Tensor& target_ids,
                      const OptionalTensor& parents, const OptionalTensor& verify_rows,
                      int64_t max_path, const OptionalTensor& status, const Tensor& emitted,
                      const Tensor& num_accepted, const Tensor& num_emitted,
                      const Tensor& accepted_rows) {
  const Checks checks{"accept_match", tokens};
  AcceptMatchParams p{};
  p.tokens = checks.index("tokens", tokens, "[Tv]", -1);
  p.num_rows = tokens.size(0);
  p.cu_verify = checks.index("cu_verify", cu_verify, "[B + 1]", -1);
  checks.at_least<int64_t>("len(cu_verify)", cu_verify.size(0), 1);
  p.num_requests = cu_verify.size(0) - 1;
  p.target_ids = checks.index("target_ids", target_ids, "[Tv]", p.num_rows);
  p.parents = checks.index("parents", parents, "[Tv]", p.num_rows);
  p.verify_rows = checks.index("verify_rows", verify_rows, "[Tv]", p.num_rows);
  checks.at_least<int64_t>("max_path", max_path, 0);
  p.max_path = max_path;
  p.status = checks.status(status, "[B]", p.num_requests);

  const int64_t batch = p.num_requests, path = max_path + 1;
  p.emitted = checks.index_out("emitted", emitted, "[B, max_path + 1]", {batch, path});
  p.num_accepted = checks.index_out("num_accepted", num_accepted, "[B]", {batch});
  p.num_emitted = checks.index_out("num_emitted", num_emitted, "[B]", {batch});
  p.accepted_rows =
      checks.index_out("accepted_rows", accepted_rows, "[B, max_path + 1]", {batch, path});
  kRun(p, tokens.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor> accept_match(
    const Tensor& tokens, const Tensor& cu_verify, const Tensor& target_ids,
    const OptionalTensor& parents, const OptionalTensor& verify_rows, int64_t max_path,
    const OptionalTensor& status) {
  // Not checked yet, so only kept from being negative: accept_match_out says what is wrong.
  const int64_t batch = std::max<int64_t>(cu_verify.numel() - 1, 0);
  const int64_t path = std::max<int64_t>(max_path, 0) + 1;
  const auto ids = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(tokens, shape, ScalarType::Long);
  };
  std::tuple outs{ids({batch, path}), ids({batch}), ids({batch}), ids({batch, path})};
  const auto& [emitted, num_accepted, num_emitted, accepted_rows] = outs;
  accept_match_out<kRun>(tokens, cu_verify, target_ids, parents, verify_rows, max_path, status,
                         emitted, num_accepted, num_emitted, accepted_rows);
  return outs;
}

}  // namespace dflash
