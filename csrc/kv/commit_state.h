// commit_state, torch side: checks, the same for every backend. A backend is a function
// void run(const CommitStateParams&, int32_t device_idx).
#pragma once

#include "common/check.h"
#include "kv/lists.h"
#include "kv/params.h"

namespace dflash {

// Elements of one row, the first dimension apart; its memory must be in one piece.
inline int64_t row_elements(const Checks& checks, const std::string& name, const Tensor& t) {
  if (t.dim() == 0) checks.fail(name, " must have a first dimension, got shape []");
  int64_t count = 1;
  for (int64_t dim = t.dim() - 1; dim > 0; --dim) {
    if (t.sizes()[dim] > 1 && t.strides()[dim] != count) {
      checks.fail(name, " must have contiguous rows, got strides ", shape_name(t.strides()));
    }
    count *= t.sizes()[dim];
  }
  return count;
}

inline StateLayer state_layer(const Checks& checks, const Tensor& state, const Tensor& row_state,
                              size_t idx, const CommitStateParams& p) {
  const std::string name = element_name("states", idx), row_name = element_name("row_states", idx);
  checks.tensor(row_name.c_str(), row_state, {state.scalar_type()}, "[T, ...]", row_state.sizes());
  const int64_t count = row_elements(checks, name, state);
  row_elements(checks, row_name, row_state);
  const auto rows_of = [](const Tensor& t) {
    return shape_name({t.sizes().data() + 1, static_cast<size_t>(t.dim() - 1)});
  };
  if (rows_of(state) != rows_of(row_state)) {
    checks.fail(row_name, " must have rows of shape ", rows_of(state), ", got ",
                rows_of(row_state));
  }
  checks.any_tensor(name.c_str(), state, "[num_slots, ...]", state.sizes());
  if (state.size(0) != p.num_slots) {
    checks.fail(name, " must have ", p.num_slots, " rows, got ", state.size(0));
  }
  if (row_state.size(0) != p.num_rows) {
    checks.fail(row_name, " must have ", p.num_rows, " rows, got ", row_state.size(0));
  }
  const auto bytes = static_cast<int64_t>(state.element_size());
  return {static_cast<char*>(state.mutable_data_ptr()),
          static_cast<const char*>(row_state.const_data_ptr()), state.strides()[0] * bytes,
          row_state.strides()[0] * bytes, count * bytes};
}

template <auto kRun>
void commit_state(const TensorList& states, const TensorList& row_states,
                  const Tensor& accepted_rows, const OptionalTensor& num_kept,
                  const OptionalTensor& state_slots, const OptionalTensor& req_rows,
                  const OptionalTensor& status) {
  const Checks checks{"commit_state", accepted_rows};
  CommitStateParams p{};
  p.accepted_rows = checks.index_table("accepted_rows", accepted_rows, "[B, P]", {-1, -1});
  p.num_requests = accepted_rows.size(0);
  p.num_kept = checks.index("num_kept", num_kept, "[B]", p.num_requests);
  p.state_slots = checks.index("state_slots", state_slots, "[R]", -1);
  checks.at_least<size_t>("len(states)", states.size(), 1);
  if (row_states.size() != states.size()) {
    checks.fail("len(row_states) must be ", states.size(), ", got ", row_states.size());
  }
  p.num_slots = states[0].dim() > 0 ? states[0].size(0) : 0;
  p.num_rows = row_states[0].dim() > 0 ? row_states[0].size(0) : 0;
  std::vector<StateLayer> layers;
  for (size_t idx = 0; idx < states.size(); ++idx) {
    layers.push_back(state_layer(checks, states[idx], row_states[idx], idx, p));
  }
  const int64_t num_state_rows = state_slots ? state_slots->size(0) : p.num_slots;
  p.requests = {checks.index("req_rows", req_rows, "[B]", p.num_requests), num_state_rows};
  p.status = checks.status(status, "[B]", p.num_requests);
  p.layers = layers.data();
  p.num_layers = static_cast<int64_t>(layers.size());
  kRun(p, accepted_rows.get_device_index());
}

}  // namespace dflash
