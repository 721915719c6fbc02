// commit, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const CommitParams&, int32_t device_idx).
#pragma once

#include <algorithm>

#include "common/check.h"
#include "common/tensor.h"
#include "loop/params.h"

namespace dflash {

template <auto kRun>
void commit_out(const Tensor& tokens, const Tensor& lengths, const Tensor& ctx_lens,
                const Tensor& finished, const Tensor& emitted, const Tensor& num_emitted,
                const Tensor& cu_rows, const OptionalTensor& cu_verify,
                const OptionalTensor& req_rows, const OptionalTensor& stop_ids,
                const OptionalTensor& min_lens, const OptionalTensor& max_lens,
                const OptionalTensor& status, const Tensor& num_kept) {
  const Checks checks{"commit", tokens};
  CommitParams p{};
  p.tokens = checks.index_out("tokens", tokens, "[R, capacity]", {-1, -1});
  const int64_t num_state_rows = tokens.size(0);
  p.capacity = tokens.size(1);
  const auto state = [&](const char* name, const Tensor& t) {
    return IndexState{checks.index(name, t, "[R]", num_state_rows),
                      checks.index_out(name, t, "[R]", {num_state_rows})};
  };
  p.lengths = state("lengths", lengths);
  p.ctx_lens = state("ctx_lens", ctx_lens);
  checks.tensor("finished", finished, {ScalarType::Bool}, "[R]", {num_state_rows});
  p.finished = {finished.mutable_data_ptr<bool>(), finished.strides()[0]};
  p.emitted = checks.index_table("emitted", emitted, "[B, E]", {-1, -1});
  p.num_requests = emitted.size(0);
  p.num_emitted = checks.index("num_emitted", num_emitted, "[B]", p.num_requests);
  p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", p.num_requests + 1);
  p.cu_verify = checks.index("cu_verify", cu_verify, "[B + 1]", p.num_requests + 1);
  p.requests = {checks.index("req_rows", req_rows, "[B]", p.num_requests), num_state_rows};
  if (stop_ids) {
    p.stop_ids = checks.index_table("stop_ids", *stop_ids, "[R, S]", {num_state_rows, -1});
  }
  p.min_lens = checks.index("min_lens", min_lens, "[R]", num_state_rows);
  p.max_lens = checks.index("max_lens", max_lens, "[R]", num_state_rows);
  p.status = checks.status(status, "[B]", p.num_requests);
  p.num_kept = checks.index_out("num_kept", num_kept, "[B]", {p.num_requests});
  kRun(p, tokens.get_device_index());
}

template <auto kRun>
Tensor commit(const Tensor& tokens, const Tensor& lengths, const Tensor& ctx_lens,
              const Tensor& finished, const Tensor& emitted, const Tensor& num_emitted,
              const Tensor& cu_rows, const OptionalTensor& cu_verify,
              const OptionalTensor& req_rows, const OptionalTensor& stop_ids,
              const OptionalTensor& min_lens, const OptionalTensor& max_lens,
              const OptionalTensor& status) {
  // Not checked yet: commit_out says what is wrong.
  const int64_t batch = emitted.dim() > 0 ? emitted.size(0) : 0;
  Tensor num_kept = new_tensor(tokens, {batch}, ScalarType::Long);
  commit_out<kRun>(tokens, lengths, ctx_lens, finished, emitted, num_emitted, cu_rows, cu_verify,
                   req_rows, stop_ids, min_lens, max_lens, status, num_kept);
  return num_kept;
}

}  // namespace dflash
