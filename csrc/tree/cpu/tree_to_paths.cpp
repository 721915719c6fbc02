// tree_to_paths: the rows from the anchor to each leaf.
//
// Reference: python/dflash_ops/reference/tree.py

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tree/cpu/kernels.h"

namespace dflash {

void tree_to_paths_cpu(const TreeToPathsParams& p, int64_t begin, int64_t end) {
  std::vector<int64_t> depth;
  std::vector<bool> is_leaf;
  for (int64_t b = begin; b < end; ++b) {
    const RowRange rows = row_range(p.cu_rows, b, p.num_rows);
    int32_t bits = rows.in_range ? 0 : kOutOfRange;
    const int64_t num_good = num_good_rows(p.parents, rows, INT64_MAX, bits);
    const auto parent = [&](int64_t i) { return p.parents[rows.first + i]; };
    depth.assign(num_good, 0);
    is_leaf.assign(num_good, true);
    for (int64_t i = 1; i < num_good; ++i) {
      depth[i] = depth[parent(i)] + 1;
      is_leaf[parent(i)] = false;
    }

    IndexOut paths = p.paths;  // those of this request
    const int64_t item_bytes = paths.is_int64 ? 8 : 4;
    paths.data = static_cast<char*>(paths.data) + b * p.request_stride * item_bytes;
    int64_t num_paths = 0;
    for (int64_t i = 0; i < num_good; ++i) {
      if (!is_leaf[i]) continue;
      if (num_paths == p.max_paths || depth[i] >= p.path_length) bits |= kBoundTooSmall;
      if (num_paths == p.max_paths) break;
      for (int64_t node = i, d = depth[i]; d >= 0; --d) {
        if (d < p.path_length) paths.set(num_paths, d, node);
        if (d > 0) node = parent(node);
      }
      for (int64_t d = depth[i] + 1; d < p.path_length; ++d) paths.set(num_paths, d, -1);
      ++num_paths;
    }
    for (int64_t path = num_paths; path < p.max_paths; ++path) {
      for (int64_t d = 0; d < p.path_length; ++d) paths.set(path, d, -1);
    }
    p.num_paths.set(b, num_paths);
    p.status.add(b, bits);
  }
}

}  // namespace dflash
