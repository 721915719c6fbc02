// A sum of terms that belong to ids, in the one order: blocks of 64 ids, each in ascending order,
// merged by the tree of the log-sum-exp. A term that is left out changes as little as one that is
// 0.
#pragma once

#include <algorithm>

#include "verify/cpu/law.h"
#include "verify/rejection.h"

namespace dflash {

class VocabSum {
 public:
  void add(int64_t first_id, const float* terms) {  // of a span; first ids ascend
    tree_.add(first_id / kSpan, sum_node(law_kernels().sum(terms)));
  }
  void add(int64_t first_id, const float* terms, int64_t count) {
    float span[kSpan] = {};
    std::copy(terms, terms + count, span);
    add(first_id, span);
  }
  float value() const { return tree_.total().sum; }

 private:
  LseTree tree_;
};

}  // namespace dflash
