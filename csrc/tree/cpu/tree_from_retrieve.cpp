// tree_from_retrieve: parents from first-child and next-sibling links.
//
// A node is given its parent once, and only by a lower row, so links with cycles end.
//
// Reference: python/dflash_ops/reference/tree.py

#include "tree/cpu/kernels.h"

namespace dflash {

void tree_from_retrieve_cpu(const TreeFromRetrieveParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t i = 0; i < p.num_nodes; ++i) p.parents.set(b, i, -1);
    for (int64_t i = 0; i < p.num_nodes; ++i) {
      if (i > 0 && p.parents.get(b, i) < 0) continue;  // not reached: padding
      int64_t child = p.next_token(b, i);
      while (child > i && child < p.num_nodes && p.parents.get(b, child) < 0) {
        p.parents.set(b, child, i);
        child = p.next_sibling(b, child);
      }
      if (child != -1) p.status.add(b, kBadTree);
    }
  }
}

}  // namespace dflash
