// The list of tiles of a call, made on the device by one CTA: requests are checked in their order,
// tiles are bounded, and rows that belong to no request get their empty result.
#pragma once

#include "attention/cuda/requests.cuh"
#include "common/dispatch.h"

namespace dflash {

inline constexpr int kPlanThreads = 256;

template <class T>
__device__ void store_empty(const TreeAttentionParams& p, int64_t begin, int64_t end) {
  const int64_t count = (end - begin) * p.num_heads;
  for (int64_t i = warp_index(); i < count; i += kPlanThreads / kWarpSize) {
    const int64_t row = begin + i / p.num_heads, head = i % p.num_heads;
    T* out = p.out.at<T>(row) + head * p.out.strides[1];
    for (int64_t col = lane_index(); col < p.v_dim; col += kWarpSize) {
      out[col * p.out.strides[2]] = from_float<T>(0.0f);
    }
    if (lane_index() == 0) {
      p.lse.at<float>(row)[head * p.lse.strides[1]] = -std::numeric_limits<float>::infinity();
    }
  }
}

// By a whole warp: the tiles of a request, from `tiles` on, whose bounds depend on all its rows.
__device__ inline void write_tiles(const TreeAttentionParams& p, AttentionTile tile,
                                   const RowRange& rows, int64_t tile_rows, AttentionTile* tiles,
                                   int32_t& status) {
  if (tile.is_tree) {
    bool anchor_is_bad = false;
    tile.request_rows = count_good_nodes(p, rows, anchor_is_bad);
    if (tile.request_rows < rows.count || anchor_is_bad) status |= kBadTree;
  }
  for (tile.row = 0; tile.row < rows.count; tile.row += tile_rows, ++tiles) {
    tile.num_rows = most(least(tile_rows, tile.request_rows - tile.row), 0);
    if (tile.num_rows > 0) bound_keys(p, tile);
    if (lane_index() == 0) *tiles = tile;
  }
}

template <class T>
__global__ void __launch_bounds__(kPlanThreads)
    plan_tiles_kernel(const __grid_constant__ TreeAttentionParams p,
                      const __grid_constant__ TreeAttentionPlan plan, AttentionTile* tiles) {
  __shared__ int64_t firsts[kPlanThreads], counts[kPlanThreads], gaps[kPlanThreads];
  __shared__ int64_t tile_begins[kPlanThreads];
  __shared__ bool is_good[kPlanThreads];
  int64_t rows_end = 0, num_tiles = 0;  // thread 0's
  for (int64_t base = 0; base < p.num_requests; base += kPlanThreads) {
    const int64_t b = base + threadIdx.x;
    if (b < p.num_requests) {
      AttentionTile tile{};
      RowRange rows{};
      int32_t status = 0;
      is_good[threadIdx.x] = read_request(p, b, tile, rows, status);
      firsts[threadIdx.x] = rows.first;
      counts[threadIdx.x] = rows.count;
      add_status(p.status, b, status);
    }
    __syncthreads();
    const int num_here = static_cast<int>(least(p.num_requests - base, kPlanThreads));
    if (threadIdx.x == 0) {  // a request that shares rows with one before it is left out
      for (int i = 0; i < num_here; ++i) {
        if (counts[i] > 0 && firsts[i] < rows_end) {
          is_good[i] = false;
          add_status(p.status, base + i, kOutOfRange);
        }
        gaps[i] = rows_end;
        tile_begins[i] = num_tiles;
        if (!is_good[i]) continue;
        rows_end = firsts[i] + counts[i];
        num_tiles += (counts[i] + plan.tile_rows - 1) / plan.tile_rows;
      }
    }
    __syncthreads();
    for (int i = warp_index(); i < num_here; i += kPlanThreads / kWarpSize) {
      if (!is_good[i]) continue;
      AttentionTile tile{};
      RowRange rows{};
      int32_t status = 0;
      read_request(p, base + i, tile, rows, status);
      write_tiles(p, tile, rows, plan.tile_rows, tiles + tile_begins[i], status);
      if (lane_index() == 0) add_status(p.status, base + i, status);
    }
    for (int i = 0; i < num_here; ++i) {
      if (!is_good[i]) continue;
      store_empty<T>(p, gaps[i], firsts[i]);
      const bool may_drop_rows = p.mask_bits && counts[i] > 0;
      if (!may_drop_rows) continue;
      AttentionTile tile{};
      RowRange rows{};
      int32_t status = 0;
      read_request(p, base + i, tile, rows, status);
      if (!tile.is_tree) continue;
      bool anchor_is_bad = false;
      const int64_t kept = count_good_nodes(p, rows, anchor_is_bad);
      store_empty<T>(p, rows.first + kept, rows.first + rows.count);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) gaps[0] = rows_end, tile_begins[0] = num_tiles;
  __syncthreads();
  store_empty<T>(p, gaps[0], p.num_rows);
  for (int64_t i = tile_begins[0] + threadIdx.x; i < plan.max_tiles; i += kPlanThreads) {
    tiles[i] = AttentionTile{};
  }
}

}  // namespace dflash
