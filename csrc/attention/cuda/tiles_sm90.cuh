// tree_attention on sm_90a: two warps bring tiles, one the keys of each block and one its values,
// into a ring in shared memory; four warps wait for them on mbarriers.
//
// A tile is 64 rows of one head: columns of 64 elements, each of 64 rows of 128 bytes, swizzled by
// 128, which wgmma reads as they lie: keys with k along the rows, values with k down them. Rows
// come from pages of any size and stride, so each is copied by itself, in units of 16 bytes
// (cp.async).
#pragma once

#include "attention/cuda/leaf_blocks.cuh"
#include "device/ring.cuh"
#include "device/sm90.cuh"

namespace dflash {

inline constexpr int kConsumerThreads = kAttentionThreads;
inline constexpr int kSm90Threads = kConsumerThreads + 2 * kWarpSize;
inline constexpr int kColumn = 64;  // elements

constexpr int num_columns(int64_t dim) { return static_cast<int>((dim + kColumn - 1) / kColumn); }

template <int kDim>
struct AttentionStorage {
  static constexpr int kTileBytes = kBlockKeys * kDim * 2;
  static constexpr int kStages = 160 * 1024 / kTileBytes;  // tiles: keys and values in turn

  alignas(1024) char queries[kTileBytes];
  char tiles[kStages][kTileBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t present[kStages];  // bit i: row i of the tile is there
  int nodes[2][kBlockKeys];   // of each warp that loads: own row at each position, -1: none
  AttentionItem item;

  // full: the lanes of the warp that loads, each with its copies, and one for `present`. empty: the
  // warps that read.
  __device__ void init_barriers() {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared_address(&full[stage]), kWarpSize + 1);
      mbarrier_init(shared_address(&empty[stage]), kAttentionWarps);
    }
    fence_mbarrier_init();
  }
};

// The warp that brings the keys, or the values, of an item's blocks. Of each block a lane finds two
// rows.
template <class T, int kDim>
struct TileProducer {
  static constexpr int kUnit = 16 / sizeof(T), kUnits = kColumn / kUnit;  // of a row of a column
  static constexpr int kRowsAtOnce = kWarpSize / kUnits;

  AttentionStorage<kDim>& shared;
  const KeyFinder finder;
  const ArrayView<4>& cache;
  const int dim, columns;
  const bool is_aligned;
  int* const nodes;
  Ring<AttentionStorage<kDim>::kStages> ring{1};  // the phase before the first is over
  const T* rows[2];                               // keys lane and lane + 32 of the block
  uint32_t present[2];  // bit i: key i, or i + 32, is there; else its row is somewhere

  __device__ TileProducer(const TreeAttentionParams& p, AttentionStorage<kDim>& storage,
                          bool values)
      : shared(storage),
        finder{p, storage.item.tile},
        cache(values ? p.v_cache : p.k_cache),
        dim(static_cast<int>(values ? p.v_dim : p.k_dim)),
        columns(num_columns(dim)),
        is_aligned(rows_start_at(cache, sizeof(T), 16)),
        nodes(storage.nodes[values]) {
    if (values) ring.advance();
  }

  __device__ void find_rows(const KeyBlock& block) {
    const AttentionTile& tile = finder.tile;
    PagePlace found[2];
    if (block.row < 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) found[i] = finder.shared_key(block, lane_index() + 32 * i);
    } else {
      const RowBounds bounds(finder.p, tile, tile.row + block.row);
      __syncwarp();  // the last block's nodes are read
#pragma unroll
      for (int i = 0; i < 2; ++i) nodes[lane_index() + 32 * i] = -1;
      __syncwarp();
      for (int64_t j = lane_index(); j < tile.request_rows; j += kWarpSize) {
        finder.place_node(block, bounds, j, nodes);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        found[i] = finder.own_key(block, bounds, lane_index() + 32 * i, nodes);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      present[i] = __ballot_sync(kFullMask, found[i].page >= 0);
      rows[i] = static_cast<const T*>(cache.data);
      if (found[i].page >= 0) {
        rows[i] += found[i].page * cache.strides[0] + found[i].offset * cache.strides[1] +
                   shared.item.kv_head * cache.strides[2];
      }
    }
  }

  // Calls copy(slot, from, whether there is a key and it has these elements) for the units of all
  // rows: those of a column, four rows at a time.
  template <class F>
  __device__ void for_each_unit(uint32_t to, F copy) const {
    const int unit = lane_index() % kUnits, first = lane_index() / kUnits;
#pragma unroll
    for (int step = 0; step < kBlockKeys / kRowsAtOnce; ++step) {
      constexpr int kSteps = kWarpSize / kRowsAtOnce;  // through the rows that lanes hold
      const int row = step * kRowsAtOnce + first;
      const auto own = reinterpret_cast<uint64_t>(rows[step / kSteps]);
      const auto* from = reinterpret_cast<const T*>(__shfl_sync(kFullMask, own, row % kWarpSize));
      const bool is_there =
          (present[step / kSteps] >> first >> step % kSteps * kRowsAtOnce & 1) != 0;
#pragma unroll
      for (int column = 0; column < kDim / kColumn; ++column) {
        const int element = column * kColumn + unit * kUnit;
        if (column >= columns) break;
        copy(to + piece_offset(row, column * kUnits + unit), from + element,
             is_there && element < dim);
      }
    }
  }

  __device__ void load(const KeyBlock& block) {
    find_rows(block);
    const uint32_t full = shared_address(&shared.full[ring.stage]);
    const uint32_t to = shared_address(shared.tiles[ring.stage]);
    mbarrier_wait(shared_address(&shared.empty[ring.stage]), ring.parity);
    if (lane_index() == 0) {
      shared.present[ring.stage] = uint64_t{present[1]} << 32 | present[0];
      mbarrier_arrive(full);
    }
    if (is_aligned) {
      for_each_unit(to, [](uint32_t slot, const T* from, bool is_there) {
        cp_async_16(slot, from, is_there ? 16 : 0);
      });
      mbarrier_arrive_after_copies(full);
    } else {
      for_each_unit(to, [](uint32_t slot, const T* from, bool is_there) {
        alignas(16) T elements[kUnit] = {};
        if (is_there) {
#pragma unroll
          for (int i = 0; i < kUnit; ++i) elements[i] = from[i];
        }
        store_shared_16(slot, *reinterpret_cast<const uint4*>(elements));
      });
      mbarrier_arrive(full);
    }
    ring.advance(), ring.advance();  // the other warp's tile is between
  }

  // The blocks of the item's leaves, of each as often as the consumers pass over it.
  __device__ void run() {
    const AttentionItem& item = shared.item;
    const int passes = item.is_careful ? kCarefulPasses : 1;
    for (int64_t leaf = item.first_leaf; leaf < item.end_leaf; ++leaf) {
      const LeafBlocks blocks{finder.p, item.tile, leaf};
      for (int pass = 0; pass < passes; ++pass) {
#pragma unroll 1
        for (KeyBlock block = blocks.first(); blocks.has(block); block = blocks.after(block)) {
          load(block);
        }
      }
    }
  }
};

}  // namespace dflash
