// compact_kv: moves the rows of an accepted path together, in place, in every layer.
//
// The path rises, so entry j goes to a slot at or before its own and after those of the entries
// before it: moved in order, no row is overwritten before it was read.
//
// Reference: python/dflash_ops/reference/kv.py

#include <cstring>

#include "kv/cpu/kernels.h"

namespace dflash {
namespace {

struct Path {
  int64_t state_row;
  int64_t first;   // sequence index of the anchor, which stays
  int64_t offset;  // sequence index = offset + packed row
  int64_t count;
};

Path bad_path(int32_t& bits, int32_t bit) {
  bits |= bit;
  return {};
}

// The path of request b; an empty one if its data is not good in every layer group.
Path checked_path(const CompactKvParams& p, int64_t b, int32_t& bits) {
  const int64_t state_row = p.requests[b];
  if (state_row < 0) return bad_path(bits, p.requests.is_bad(b) ? kOutOfRange : 0);
  const RowRange rows = row_range(p.cu_rows, b, INT64_MAX);
  int64_t count = p.accepted_rows.num_cols;
  if (p.num_kept) {
    if (p.num_kept[b] < 0 || p.num_kept[b] > count) return bad_path(bits, kOutOfRange);
    count = p.num_kept[b];
  } else {
    int64_t num_present = 0;
    while (num_present < count && p.accepted_rows(b, num_present) >= 0) ++num_present;
    count = num_present;
  }
  if (count == 0) return {};

  const int64_t offset = p.lengths.before(state_row, rows.count) - rows.first;
  const int64_t first = offset + p.accepted_rows(b, 0);
  for (int64_t j = 0, previous = -1; j < count; ++j) {
    const int64_t row = p.accepted_rows(b, j);
    if (row <= previous) return bad_path(bits, kBadTree);
    previous = row;
    if (!rows.in_range || row < rows.first || row >= rows.first + rows.count) {
      return bad_path(bits, kOutOfRange);
    }
    if (offset + row == first + j) continue;
    for (int64_t g = 0; g < p.num_groups; ++g) {
      const PageTable& table = p.groups[g];
      if (table.num_pages < 0) continue;  // no layer is in it
      if (table.slot(state_row, offset + row) < 0 || table.slot(state_row, first + j) < 0) {
        return bad_path(bits, kOutOfRange);
      }
    }
  }
  return {state_row, first, offset, count};
}

void move_row(const PagedBytes& t, int64_t page_size, int64_t from, int64_t to) {
  const auto start = [&](int64_t slot) {
    return t.data + slot / page_size * t.page_stride + slot % page_size * t.offset_stride;
  };
  for (int64_t i = 0; i < t.num_pieces; ++i) {
    std::memmove(start(to) + i * t.piece_stride, start(from) + i * t.piece_stride, t.piece_bytes);
  }
}

}  // namespace

void compact_kv_cpu(const CompactKvParams& p, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t layer_idx = item / p.num_requests, b = item % p.num_requests;
    const PagedLayer& layer = p.layers[layer_idx];
    const PageTable& table = p.groups[layer.group];
    int32_t bits = 0;
    const Path path = checked_path(p, b, bits);
    if (layer_idx == 0) p.status.add(b, bits);

    for (int64_t j = 0; j < path.count; ++j) {
      const int64_t source = path.offset + p.accepted_rows(b, j), target = path.first + j;
      if (source == target) continue;
      const int64_t from = table.slot(path.state_row, source);
      const int64_t to = table.slot(path.state_row, target);
      for (const PagedBytes& t : layer.tensors) {
        if (t.data != nullptr) move_row(t, table.page_size, from, to);
      }
    }
  }
}

}  // namespace dflash
