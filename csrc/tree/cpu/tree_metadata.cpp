// tree_metadata: depth, ancestors and links of every node, from the parents.
//
// A node stands after its parent, so its depth and mask follow from the parent's in one pass. The
// links are made in a second pass, from the last node to the first: each node is put in front of
// its parent's children, which are then in row order.
//
// Reference: python/dflash_ops/reference/tree.py

#include "tree/cpu/kernels.h"

namespace dflash {
namespace {

struct Request {
  const TreeMetadataParams& p;
  RowRange rows;
  bool is_tree;

  int64_t parent(int64_t i) const { return is_tree ? p.parents[rows.first + i] : i - 1; }

  void set_depth_and_mask(int64_t i) const {
    const int64_t row = rows.first + i;
    if (i > 0) {
      const int64_t parent_row = rows.first + parent(i);
      p.depth.set(row, p.depth.get(parent_row) + 1);
      for (int64_t w = 0; w < p.mask.num_words; ++w) {
        p.mask.word(row, w) = p.mask.word(parent_row, w);
      }
    }
    if (i < p.max_rows) p.mask.word(row, i / 32) |= 1u << i % 32;
  }

  void link(int64_t i) const {
    const int64_t row = rows.first + i, parent_row = rows.first + parent(i);
    p.next_sibling.set(row, p.first_child.get(parent_row));
    p.first_child.set(parent_row, i);
  }
};

}  // namespace

void tree_metadata_fill_cpu(const TreeMetadataParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    p.depth.set(row, 0);
    p.first_child.set(row, -1);
    p.next_sibling.set(row, -1);
    for (int64_t w = 0; w < p.mask.num_words; ++w) p.mask.word(row, w) = 0;
  }
}

void tree_metadata_cpu(const TreeMetadataParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    const Request request{p, row_range(p.cu_rows, b, p.num_rows),
                          !p.tree_nodes || p.tree_nodes[b] > 0};
    int32_t bits = request.rows.in_range ? 0 : kOutOfRange;
    const int64_t num_good = request.is_tree
                                 ? num_good_rows(p.parents, request.rows, p.max_rows, bits)
                                 : request.rows.count;
    for (int64_t i = 0; i < num_good; ++i) request.set_depth_and_mask(i);
    for (int64_t i = num_good - 1; i > 0; --i) request.link(i);
    p.status.add(b, bits);
  }
}

}  // namespace dflash
