// A row's best candidates, as data that may be bad.
#pragma once

#include <algorithm>
#include <limits>

#include "sample/keys.h"
#include "sample/lse.h"
#include "sample/params.h"
#include "sample/plan.h"

namespace dflash {

struct Candidates {
  uint64_t keys[kMaxCandidates];
  int64_t count = 0;
  bool is_complete = false;  // the row has no other finite logit
  int64_t lowest_id = -1;    // of a row without a finite logit
  int32_t status = 0;
};

// A list ends at the first absent id. One that is not in order is not believed from there on.
inline void read_candidates(const ArrayView<2>& values, const IndexTable& ids, int64_t row,
                            int64_t vocab_size, Candidates& list) {
  for (int64_t j = 0; j < ids.num_cols; ++j) {
    const int64_t id = ids(row, j);
    if (id == -1) {
      list.is_complete = true;
      return;
    }
    if (id < 0 || id >= vocab_size) {
      list.status |= kOutOfRange;
      return;
    }
    const float value = values.at<float>(row)[j * values.strides[1]];
    if (!(value > kMinusInf)) {
      if (j == 0) list.lowest_id = id;
      list.is_complete = true;
      return;
    }
    const float largest = std::numeric_limits<float>::max();
    const uint64_t key = candidate_key(std::min(value, largest) + 0.0f, id);
    if (list.count > 0 && key >= list.keys[list.count - 1]) return;
    list.keys[list.count++] = key;
  }
}

}  // namespace dflash
