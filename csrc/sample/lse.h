// log-sum-exp over a vocabulary in one order, whoever computes which part: blocks of 64 ids from
// id 0, merged by a binary tree that is aligned to the block's number. A missing sibling passes the
// other one's bits through, so masked, absent and remote blocks change nothing.
#pragma once

#include <cstdint>

#include "common/expf.h"
#include "common/logf.h"

namespace dflash {

inline constexpr int kLseBlock = 64;  // ids
inline constexpr float kMinusInf = -__builtin_inff();

// sum of exp(z - max); of nothing: {-inf, 0}.
struct LseNode {
  float max;
  float sum;
};

// The larger maximum keeps its sum as it is; so the order of two arguments does not matter.
static constexpr LseNode merge_lse(LseNode a, LseNode b) {
  if (b.max == kMinusInf) return a;
  if (a.max == kMinusInf) return b;
  const LseNode high = a.max < b.max ? b : a, low = a.max < b.max ? a : b;
  return {high.max, std::fma(low.sum, exp_f32(low.max - high.max), high.sum)};
}

static constexpr float lse_of(LseNode node) {
  return node.max == kMinusInf ? kMinusInf : node.max + log_f32(node.sum);
}

// Takes nodes of one level in ascending number, gaps allowed, and merges them as the tree has them.
struct LseTree {
  static constexpr int kLevels = 40;

  LseNode nodes[kLevels];  // what has no right sibling yet, the widest first
  int levels[kLevels];
  int count = 0;

  constexpr void add(int64_t number, LseNode node) {
    int level = 0;
    for (; number % 2 == 1; number /= 2, ++level) {
      if (count > 0 && levels[count - 1] == level) node = merge_lse(nodes[--count], node);
    }
    nodes[count] = node;
    levels[count++] = level;
  }

  constexpr LseNode total() const {
    LseNode node{kMinusInf, 0.0f};
    for (int i = count; i-- > 0;) node = merge_lse(nodes[i], node);
    return node;
  }
};

}  // namespace dflash
