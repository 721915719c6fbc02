// tree_from_mask: parents from who may see whom, the inverse of tree_metadata's mask.
//
// Rows rise along a path, so a node's parent is the highest row below its own that it sees. The row
// is good if it sees itself and otherwise exactly what the parent sees.
//
// Reference: python/dflash_ops/reference/tree.py

#include "tree/cpu/kernels.h"

namespace dflash {
namespace {

// The parent of local row i; below -1: its mask is no tree's.
int64_t parent_by_mask(const TreeFromMaskParams& p, const RowRange& rows, int64_t i) {
  constexpr int64_t kBad = -2;
  const int64_t row = rows.first + i;
  if (!p.mask(row, i)) return kBad;
  for (int64_t j = i + 1; j < p.mask.num_cols; ++j) {
    if (p.mask(row, j)) return kBad;
  }
  int64_t parent = i - 1;
  while (parent >= 0 && !p.mask(row, parent)) --parent;
  if (parent < 0) return i == 0 ? -1 : kBad;
  for (int64_t j = 0; j < parent; ++j) {
    if (p.mask(row, j) != p.mask(rows.first + parent, j)) return kBad;
  }
  return parent;
}

}  // namespace

void tree_from_mask_fill_cpu(const TreeFromMaskParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) p.parents.set(row, -1);
}

void tree_from_mask_cpu(const TreeFromMaskParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    const RowRange rows = row_range(p.cu_rows, b, p.num_rows);
    if (!rows.in_range) p.status.add(b, kOutOfRange);
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t parent = parent_by_mask(p, rows, i);
      if (parent < -1) {
        p.status.add(b, kBadTree);
        break;
      }
      p.parents.set(rows.first + i, parent);
    }
  }
}

}  // namespace dflash
