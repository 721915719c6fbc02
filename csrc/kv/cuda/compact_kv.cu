// compact_kv: moves the rows of an accepted path together, in place, in every layer.
//
//   grid   num_requests, num_layers * tensors of a layer, compact_column_ctas(longest row)
//   block  kCompactBlock
//   smem   2 KB
//   moves  each row that changes its slot once: read and written in pieces of up to 16 bytes
//
// A thread owns a column of bytes of one tensor for a whole path, so no thread waits for another.
// The path rises: entry j goes to a slot at or before its own and before those of the entries
// after it. So a thread may read any number of entries ahead of what it writes.
//
// Reference: python/dflash_ops/reference/kv.py

#include "device/copy.cuh"
#include "device/warp.cuh"
#include "kv/cuda/launch.h"
#include "kv/plan.h"

namespace dflash {
namespace {

constexpr int kBlock = kCompactBlock;

// The lists of CompactKvParams lie in host memory; these are in the kernel's argument.
struct CompactKvLaunch {
  CompactKvParams p;
  int64_t tensors_per_layer;
  PageTable groups[kCompactMaxGroups];
  PagedLayer layers[kCompactMaxLayers];
};

struct Path {
  int64_t state_row;
  int64_t first;   // sequence index of the anchor, which stays
  int64_t offset;  // sequence index = offset + packed row
  int64_t count;
};

__device__ Path bad_path(int32_t& bits, int32_t bit) {
  bits |= bit;
  return {};
}

__device__ int64_t num_entries(const CompactKvParams& p, int64_t b) {
  if (p.num_kept) return p.num_kept[b];
  for (int64_t base = 0; base < p.accepted_rows.num_cols; base += kWarpSize) {
    const int64_t j = base + lane_index();
    const int num_present = first_lane(j >= p.accepted_rows.num_cols || p.accepted_rows(b, j) < 0);
    if (num_present < kWarpSize) return base + num_present;
  }
  return p.accepted_rows.num_cols;
}

// What is wrong with entry j of a path; 0: nothing.
__device__ int32_t entry_bits(const CompactKvLaunch& c, const Path& path, const RowRange& rows,
                              int64_t b, int64_t j) {
  const int64_t row = c.p.accepted_rows(b, j);
  if (row <= (j > 0 ? c.p.accepted_rows(b, j - 1) : -1)) return kBadTree;
  if (!rows.in_range || row < rows.first || row >= rows.first + rows.count) return kOutOfRange;
  const int64_t source = path.offset + row, target = path.first + j;
  if (source == target) return 0;
  for (int64_t g = 0; g < c.p.num_groups; ++g) {
    const PageTable& table = c.groups[g];
    if (table.num_pages < 0) continue;  // no layer is in it
    if (table.slot(path.state_row, source) < 0) return kOutOfRange;
    if (table.slot(path.state_row, target) < 0) return kOutOfRange;
  }
  return 0;
}

// The path of request b; an empty one if its data is not good in every layer group. By one warp.
__device__ Path checked_path(const CompactKvLaunch& c, int64_t b, int32_t& bits) {
  const CompactKvParams& p = c.p;
  const int64_t state_row = p.requests[b];
  if (state_row < 0) return bad_path(bits, p.requests.is_bad(b) ? kOutOfRange : 0);
  const RowRange rows = row_range(p.cu_rows, b, INT64_MAX);
  const int64_t count = num_entries(p, b);
  if (count < 0 || count > p.accepted_rows.num_cols) return bad_path(bits, kOutOfRange);
  if (count == 0) return {};

  const int64_t offset = p.lengths.before(state_row, rows.count) - rows.first;
  const Path path{state_row, offset + p.accepted_rows(b, 0), offset, count};
  for (int64_t base = 0; base < count; base += kWarpSize) {
    const int64_t j = base + lane_index();
    const int32_t wrong = j < count ? entry_bits(c, path, rows, b, j) : 0;
    const int lane = first_lane(wrong != 0);
    if (lane < kWarpSize) return bad_path(bits, __shfl_sync(kFullMask, wrong, lane));
  }
  return path;
}

struct Move {
  int64_t from;  // bytes from the start of a column
  int64_t to;
};

template <class Unit>
__device__ void move_columns(const PagedBytes& t, const Move* moves, int count) {
  constexpr int kBatch = 4;  // entries on their way at once
  constexpr int64_t kBytes = sizeof(Unit);
  const int64_t units_per_piece = t.piece_bytes / kBytes;
  const int64_t num_columns = t.num_pieces * units_per_piece;
  for (int64_t column_idx = int64_t{blockIdx.z} * kBlock + threadIdx.x; column_idx < num_columns;
       column_idx += int64_t{gridDim.z} * kBlock) {
    char* column = t.data + column_idx / units_per_piece * t.piece_stride +
                   column_idx % units_per_piece * kBytes;
    for (int j = 0; j < count; j += kBatch) {
      Unit units[kBatch];
      for (int i = 0; i < kBatch; ++i) {
        if (j + i < count) units[i] = *reinterpret_cast<const Unit*>(column + moves[j + i].from);
      }
      for (int i = 0; i < kBatch; ++i) {
        if (j + i < count) *reinterpret_cast<Unit*>(column + moves[j + i].to) = units[i];
      }
    }
  }
}

// In the largest units that every address of the tensor is a multiple of.
__device__ void move_aligned(const PagedBytes& t, const Move* moves, int count) {
  const auto bits = reinterpret_cast<uint64_t>(t.data) | static_cast<uint64_t>(t.page_stride) |
                    static_cast<uint64_t>(t.offset_stride) | static_cast<uint64_t>(t.piece_stride) |
                    static_cast<uint64_t>(t.piece_bytes);
  with_unit(bits,
            [&]<class Unit>(std::type_identity<Unit>) { move_columns<Unit>(t, moves, count); });
}

__global__ void __launch_bounds__(kBlock)
    compact_kv_kernel(const __grid_constant__ CompactKvLaunch c) {
  __shared__ Move moves[kBlock];
  const int64_t b = blockIdx.x;
  const PagedLayer& layer = c.layers[blockIdx.y / c.tensors_per_layer];
  const PagedBytes& tensor = layer.tensors[blockIdx.y % c.tensors_per_layer];
  const PageTable& table = c.groups[layer.group];

  int32_t bits = 0;
  const Path path = checked_path(c, b, bits);
  if (blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) c.p.status.add(b, bits);
  if (tensor.data == nullptr) return;

  const auto source_of = [&](int64_t j) { return path.offset + c.p.accepted_rows(b, j); };
  const auto start = [&](int64_t seq_idx) {
    const int64_t slot = table.slot(path.state_row, seq_idx);
    return slot / table.page_size * tensor.page_stride +
           slot % table.page_size * tensor.offset_stride;
  };
  // An entry that stays has only entries that stay before it.
  int64_t first_moved = 0;
  while (first_moved < path.count && source_of(first_moved) == path.first + first_moved) {
    ++first_moved;
  }
  for (int64_t base = first_moved; base < path.count; base += kBlock) {
    const int64_t j = base + threadIdx.x;
    __syncthreads();  // the moves before these are done
    if (j < path.count) moves[threadIdx.x] = {start(source_of(j)), start(path.first + j)};
    __syncthreads();
    const int64_t left = path.count - base;
    move_aligned(tensor, moves, static_cast<int>(left < kBlock ? left : kBlock));
  }
}

int64_t row_bytes(const PagedBytes& t) { return t.num_pieces * t.piece_bytes; }

}  // namespace

cudaError_t launch_compact_kv(const CompactKvParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  CompactKvLaunch c{};
  c.p = p;
  std::copy_n(p.groups, p.num_groups, c.groups);
  for (int64_t first = 0; first < p.num_layers; first += kCompactMaxLayers) {
    const int64_t num_layers = std::min<int64_t>(p.num_layers - first, kCompactMaxLayers);
    std::copy_n(p.layers + first, num_layers, c.layers);
    int64_t longest = 0;
    c.tensors_per_layer = 1;
    for (int64_t i = 0; i < num_layers; ++i) {
      for (int64_t t = 0; t < 4; ++t) {
        if (c.layers[i].tensors[t].data == nullptr) continue;
        longest = std::max(longest, row_bytes(c.layers[i].tensors[t]));
        c.tensors_per_layer = std::max(c.tensors_per_layer, t + 1);
      }
    }
    const dim3 grid(static_cast<uint32_t>(p.num_requests),
                    static_cast<uint32_t>(num_layers * c.tensors_per_layer),
                    static_cast<uint32_t>(compact_column_ctas(longest)));
    compact_kv_kernel<<<grid, kBlock, 0, stream>>>(c);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace dflash
