// commit_state: the recurrent state after the last kept row becomes the request's state.
//
//   grid   num_requests, num_layers, parts of kStateBytesPerCta bytes of the longest row
//   block  kStateBlock
//   smem   none
//   moves  a row of each layer once, in units of up to 16 bytes
//
// Reference: python/dflash_ops/reference/state.py

#include <algorithm>

#include "device/copy.cuh"
#include "device/warp.cuh"
#include "kv/cuda/launch.h"
#include "kv/plan.h"

namespace dflash {
namespace {

// The list of CommitStateParams lies in host memory; this one is in the kernel's argument.
struct CommitStateLaunch {
  CommitStateParams p;
  StateLayer layers[kStateMaxLayers];
};

struct StateMove {
  int64_t row;  // -1: nothing moves
  int64_t slot;
  int32_t bits;
};

// By one warp.
__device__ StateMove move_of(const CommitStateParams& p, int64_t b) {
  constexpr int64_t kNothing = -1;
  const int64_t r = p.requests[b];
  if (r < 0) return {kNothing, 0, p.requests.is_bad(b) ? kOutOfRange : 0};
  int64_t count = p.num_kept ? p.num_kept[b] : 0;
  for (int64_t base = 0; !p.num_kept && base < p.accepted_rows.num_cols; base += kWarpSize) {
    const int64_t j = base + lane_index();
    const bool is_row = j < p.accepted_rows.num_cols && p.accepted_rows(b, j) >= 0;
    const uint32_t rows = __ballot_sync(kFullMask, is_row);
    if (rows != 0) count = base + kWarpSize - __clz(static_cast<int>(rows));
  }
  if (count == 0) return {kNothing, 0, 0};
  const bool has_path = count > 0 && count <= p.accepted_rows.num_cols;
  const int64_t row = has_path ? p.accepted_rows(b, count - 1) : -1;
  const int64_t slot = p.state_slots ? p.state_slots[r] : r;
  if (row < 0 || row >= p.num_rows || slot < 0 || slot >= p.num_slots) {
    return {kNothing, 0, kOutOfRange};
  }
  return {row, slot, 0};
}

__global__ void __launch_bounds__(kStateBlock)
    commit_state_kernel(const __grid_constant__ CommitStateLaunch c) {
  const int64_t b = blockIdx.x;
  const StateLayer& layer = c.layers[blockIdx.y];
  const StateMove move = move_of(c.p, b);
  const bool is_first = blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0;
  if (is_first) c.p.status.add(b, move.bits);
  if (move.row < 0) return;

  char* to = layer.states + move.slot * layer.state_stride;
  const char* from = layer.row_states + move.row * layer.row_stride;
  const uint64_t bits = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                        static_cast<uint64_t>(layer.row_bytes);
  with_unit(bits, [&]<class Unit>(std::type_identity<Unit>) {
    const int64_t num_units = layer.row_bytes / static_cast<int64_t>(sizeof(Unit));
    const int64_t step = int64_t{gridDim.z} * kStateBlock;
    for (int64_t i = int64_t{blockIdx.z} * kStateBlock + threadIdx.x; i < num_units; i += step) {
      reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(from)[i];
    }
  });
}

}  // namespace

cudaError_t launch_commit_state(const CommitStateParams& p, cudaStream_t stream) {
  if (p.num_requests == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  CommitStateLaunch c{};
  c.p = p;
  for (int64_t first = 0; first < p.num_layers; first += kStateMaxLayers) {
    const int64_t num_layers = std::min<int64_t>(p.num_layers - first, kStateMaxLayers);
    std::copy_n(p.layers + first, num_layers, c.layers);
    int64_t longest = 1;
    for (int64_t i = 0; i < num_layers; ++i) longest = std::max(longest, c.layers[i].row_bytes);
    const int64_t parts = (longest + kStateBytesPerCta - 1) / kStateBytesPerCta;
    const dim3 grid(static_cast<uint32_t>(p.num_requests), static_cast<uint32_t>(num_layers),
                    static_cast<uint32_t>(std::min<int64_t>(parts, 65535)));
    commit_state_kernel<<<grid, kStateBlock, 0, stream>>>(c);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace dflash
