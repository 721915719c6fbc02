// Blocks of 64 keys and their values in shared memory. A block is a list of physical rows: those of
// 64 positions, or, where a tree's own rows begin, those that one query row sees at 64 positions.
#pragma once

#include "attention/cuda/item.cuh"
#include "attention/cuda/piece.cuh"
#include "common/dispatch.h"

namespace dflash {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarpSize;

// Bit i: position block_begin + i lies in begin .. end - 1.
__device__ inline uint64_t range_bits(int64_t begin, int64_t end, int64_t block_begin) {
  const int64_t low = most(least(begin - block_begin, kBlockKeys), 0);
  const int64_t high = most(least(end - block_begin, kBlockKeys), 0);
  return low < high ? ~uint64_t{0} >> (kBlockKeys - (high - low)) << low : 0;
}

// Where 16 bytes of a row of a tile of 64 rows lie in shared memory: in columns of 128 bytes a row,
// turned by the row, so that the same piece of eight neighbouring rows lies in different banks (and
// as wgmma's swizzle of 128 bytes has it).
inline constexpr int kColumnBytes = 128 * kBlockKeys;
__device__ inline uint32_t piece_offset(int row, int piece) {
  return piece / 8 * kColumnBytes + row * 128 + 16 * (piece % 8 ^ (row % 8));
}

// What a query row may see of the keys by position: committed ones, and a chain's own.
struct RowBounds {
  int64_t window_begin, window_end, keys_end;

  __device__ RowBounds(const TreeAttentionParams& p, const AttentionTile& tile, int64_t row) {
    const int64_t position = row_position(p, tile, row);
    window_begin = tile.kv_start;
    if (p.window_left >= 0) {
      window_begin = most(window_begin, position - least(p.window_left, kUnbounded));
    }
    window_end = p.window_right < 0 ? kUnbounded : position + least(p.window_right, kUnbounded) + 1;
    const int64_t end = tile.is_tree ? tile.ctx_len
                        : p.causal   ? position + 1
                                     : tile.ctx_len + tile.request_rows;
    keys_end = least(end, window_end);
  }
  // Whether it may see keys before or after those of the page table.
  __device__ bool exceeds(const AttentionTile& tile) const {
    return window_begin < least(keys_end, tile.table_begin) ||
           keys_end > most(window_begin, tile.table_end);
  }
};

// 64 positions; `row`: the tile's query row that they are assembled for, -1: all rows share them.
struct KeyBlock {
  int64_t begin;
  int row;
};

// Of a block's keys, what the softmax needs to know.
struct KeysSeen {
  uint64_t present;                  // bit i: key i is there
  const float *k_scales, *v_scales;  // read where the op has scales
};

// In shared memory, of the block at work and those that come.
struct KeyTables {
  static constexpr int kSlots = 2;

  // A bit for each key that is there (or one row sees), 16 by each warp that loads.
  alignas(8) uint16_t present[kSlots][kAttentionWarps];
  float k_scales[kSlots][kBlockKeys];
  float v_scales[kSlots][kBlockKeys];
  int nodes[kBlockKeys];  // own row at each position, -1: none

  __device__ KeysSeen seen(int slot) const {
    return {*reinterpret_cast<const uint64_t*>(present[slot]), k_scales[slot], v_scales[slot]};
  }
};

// Whether all rows of a cache start at multiples of `unit` bytes.
__device__ inline bool rows_start_at(const ArrayView<4>& cache, uint64_t element_bytes,
                                     uint64_t unit) {
  const uint64_t strides = cache.strides[0] | cache.strides[1] | cache.strides[2];
  return (reinterpret_cast<uint64_t>(cache.data) | strides * element_bytes) % unit == 0;
}

struct PagePlace {  // page -1: no key
  int64_t page, offset;
};

// Where the keys of a block stand in the pages, for whoever loads them.
struct KeyFinder {
  const TreeAttentionParams& p;
  const AttentionTile& tile;

  __device__ PagePlace place(int64_t sequence_index) const {
    const int64_t in_table = sequence_index - tile.table_begin;
    if (in_table < 0) return {-1, 0};
    const int64_t col = in_table / p.pages.page_size;
    return {p.pages.page(tile.state_row, col), in_table - col * p.pages.page_size};
  }

  __device__ bool mask_allows(int64_t query_row, int64_t node) const {
    if (node / 32 >= p.mask_bits.num_cols) return false;
    return (p.mask_bits(tile.first_row + query_row, node / 32) >> (node % 32) & 1) != 0;
  }

  // Notes in `nodes`, by position, what one query row sees of own row j: of rows at one position
  // the highest stays.
  __device__ void place_node(const KeyBlock& block, const RowBounds& bounds, int64_t j,
                             int* nodes) const {
    const int64_t position = row_position(p, tile, j);
    if (position < block.begin || position >= block.begin + kBlockKeys ||
        position < bounds.window_begin || position >= bounds.window_end ||
        !mask_allows(tile.row + block.row, j)) {
      return;
    }
    if (p.pages.slot(tile.state_row, tile.ctx_len + j) < 0) {
      add_status(p.status, tile.request, kOutOfRange);
    } else if (atomicMax(&nodes[position - block.begin], static_cast<int>(j)) >= 0) {
      add_status(p.status, tile.request, kBadTree);
    }
  }

  // A key of a block that all rows share.
  __device__ PagePlace shared_key(const KeyBlock& block, int key) const {
    const int64_t position = block.begin + key;
    if (position < tile.key_begin || position >= tile.key_end) return {-1, 0};
    return place(position);
  }

  // A key of a block of one query row.
  __device__ PagePlace own_key(const KeyBlock& block, const RowBounds& bounds, int key,
                               const int* nodes) const {
    const int64_t position = block.begin + key;
    if (nodes[key] >= 0) return place(tile.ctx_len + nodes[key]);
    if (position < bounds.window_begin || position >= bounds.keys_end) return {-1, 0};
    const PagePlace found = place(position);
    if (found.page < 0 && position >= tile.table_begin && position < tile.table_end) {
      add_status(p.status, tile.request, kOutOfRange);
    }
    return found;
  }
};

struct KeyRow {  // element offsets in the caches; -1: no key
  int64_t k, v;
};

struct KeyLoader : KeyFinder {
  const int64_t& kv_head;
  KeyTables& tables;
  KeyRow row{-1, -1};  // of key 16 * warp + lane % 16 of the block

  __device__ KeyLoader(const TreeAttentionParams& params, const AttentionItem& item,
                       KeyTables& shared)
      : KeyFinder{params, item.tile}, kv_head(item.kv_head), tables(shared) {}

  // Fills tables.nodes for one query row.
  __device__ void place_nodes(const KeyBlock& block, const RowBounds& bounds) {
    __syncthreads();  // the last block's are in use no more
    if (threadIdx.x < kBlockKeys) tables.nodes[threadIdx.x] = -1;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < tile.request_rows; j += kAttentionThreads) {
      place_node(block, bounds, j, tables.nodes);
    }
    __syncthreads();
  }

  // Finds the rows of a block and says in tables.present which are there. Called by all threads
  // that load.
  __device__ void find_block(const KeyBlock& block, int slot) {
    const int key = 16 * warp_index() + lane_index() % 16;
    PagePlace found;
    if (block.row < 0) {
      found = shared_key(block, key);
    } else {
      const RowBounds bounds(p, tile, tile.row + block.row);
      place_nodes(block, bounds);
      found = own_key(block, bounds, key, tables.nodes);
    }
    const auto at = [&](const int64_t* strides) {
      return found.page * strides[0] + found.offset * strides[1] + kv_head * strides[2];
    };
    const bool is_there = found.page >= 0;
    row = is_there ? KeyRow{at(p.k_cache.strides), at(p.v_cache.strides)} : KeyRow{-1, -1};
    if (lane_index() < 16) {
      const auto scale = [&](const KvScale& scales) {
        return !is_there || scales.data == nullptr ? 1.0f
                                                   : *scales.at(found.page, found.offset, kv_head);
      };
      tables.k_scales[slot][key] = scale(p.k_scale);
      tables.v_scales[slot][key] = scale(p.v_scale);
    }
    const uint32_t here = __ballot_sync(kFullMask, is_there);
    if (lane_index() == 0) tables.present[slot][warp_index()] = static_cast<uint16_t>(here);
  }

  // Copies the found rows of one cache to shared memory as T; zeros where there is no key and past
  // the head's dimension. A stored byte is exact in T, its scale is applied to the score or weight.
  template <class T, int kDim>
  __device__ void copy(const ArrayView<4>& cache, int64_t dim, bool is_value, uint32_t to) const {
    constexpr int kPiece = 16 / sizeof(T), kPieces = kDim / kPiece;
    const bool is_copied = cache.dtype == dtype_of<T>() && rows_start_at(cache, sizeof(T), 16);
    const int64_t own = is_value ? row.v : row.k;
#pragma unroll 1
    for (int i = lane_index(); i < 16 * kPieces; i += kWarpSize) {
      const int in_warp = i / kPieces, piece = i % kPieces;
      const int64_t at = __shfl_sync(kFullMask, own, in_warp);
      const bool is_there = at >= 0 && piece * kPiece < dim;
      const uint32_t slot = to + piece_offset(16 * warp_index() + in_warp, piece);
      if (is_copied) {
        const T* from = static_cast<const T*>(cache.data) + (is_there ? at + piece * kPiece : 0);
        cp_async_16(slot, from, is_there ? 16 : 0);
        continue;
      }
      uint4 words{};
      if (is_there) {
        (void)with_dtype<float, BF16, F16, F8E4M3, F8E5M2, int8_t>(
            cache.dtype, [&]<class U>(std::type_identity<U>) {
              const U* from = static_cast<const U*>(cache.data) + at + piece * kPiece;
              constexpr uint64_t kUnit = Piece<U, kPiece>::kAlignment;
              words = converted<T>(Piece<U, kPiece>(from, rows_start_at(cache, sizeof(U), kUnit)));
            });
      }
      store_shared_16(slot, words);
    }
  }
};

}  // namespace dflash
