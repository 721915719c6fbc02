// commit_state: the recurrent state after the last kept row becomes the request's state.
//
// Reference: python/dflash_ops/reference/state.py

#include <cstring>

#include "kv/cpu/kernels.h"

namespace dflash {

void commit_state_cpu(const CommitStateParams& p, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t layer_idx = item / p.num_requests, b = item % p.num_requests;
    const auto flag = [&](int32_t bits) {
      if (layer_idx == 0) p.status.add(b, bits);
    };
    const int64_t r = p.requests[b];
    if (r < 0) {
      flag(p.requests.is_bad(b) ? kOutOfRange : 0);
      continue;
    }
    int64_t count = p.accepted_rows.num_cols;
    if (p.num_kept) {
      count = p.num_kept[b];
    } else {
      while (count > 0 && p.accepted_rows(b, count - 1) < 0) --count;
    }
    if (count == 0) continue;
    const bool has_path = count > 0 && count <= p.accepted_rows.num_cols;
    const int64_t row = has_path ? p.accepted_rows(b, count - 1) : -1;
    const int64_t slot = p.state_slots ? p.state_slots[r] : r;
    if (row < 0 || row >= p.num_rows || slot < 0 || slot >= p.num_slots) {
      flag(kOutOfRange);
      continue;
    }
    const StateLayer& layer = p.layers[layer_idx];
    std::memcpy(layer.states + slot * layer.state_stride, layer.row_states + row * layer.row_stride,
                layer.row_bytes);
  }
}

}  // namespace dflash
