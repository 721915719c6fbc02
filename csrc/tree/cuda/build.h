// The workspace of build_tree: trees before they are packed.
#pragma once

#include <cstdint>

namespace dflash {

struct TreeNode {
  int64_t id;
  int64_t parent;
  int64_t slot;             // -1: the anchor
  int64_t candidate;        // of its slot
  int64_t child_id;         // its best child that is not in the tree
  int64_t child_candidate;  // -1: none is left
  float score;              // along the path
  float child_score;
};

struct BuildTreeWork {
  TreeNode* nodes;  // [B, max_nodes]
  int64_t* counts;  // [B]
};

constexpr int64_t build_tree_bytes(int64_t num_requests, int64_t max_nodes) {
  return num_requests * (max_nodes * static_cast<int64_t>(sizeof(TreeNode)) + 8);
}

}  // namespace dflash
