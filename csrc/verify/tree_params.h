// What every backend of verify_tree receives: no torch, no CUDA.
#pragma once

#include "verify/chain_params.h"

namespace dflash {

enum class TreeRule { kRecursive, kTraversal, kTargetOnly, kTypical };

constexpr bool reads_draft_law(TreeRule rule) {
  return rule == TreeRule::kRecursive || rule == TreeRule::kTraversal;
}

struct VerifyTreeParams : RejectionParams {
  IndexView parents;  // [Tv]  local row of the parent; -1: the anchor
  TreeRule rule;
  bool has_replacement;  // siblings are independent draws from q, so a token may come twice
  float typical_eps;
  float typical_delta;
};

}  // namespace dflash
