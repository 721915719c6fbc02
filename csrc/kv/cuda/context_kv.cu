// context_kv: the rows that are stored, packed together, through the kernels of verify_gemm,
// rmsnorm and rope_append_kv, with their bits.
//
//   pack_context   grid num_rows, parts; block 256   the CTAs of a row count the stored rows before
//                                                    it, and copy 8 KB each to that place
//   then verify_gemm, rmsnorm, and verify_gemm and rope_append_kv for each stack of layers;
//   launches are for all rows, and what is past the stored ones, whose number the device knows,
//   leaves at once give_status    a thread per row
//
//   reads  fc and the layers' weights once per 64 stored rows; features of the stored rows
//
// Reference: python/dflash_ops/reference/kv.py

#include "device/copy.cuh"
#include "device/warp.cuh"
#include "gemm/cuda/launch.h"
#include "kv/context_layer.h"
#include "kv/cuda/launch.h"
#include "kv/plan.h"

namespace dflash {
namespace {

constexpr int kBlock = kPackContextBlock;

// The stored rows, in order; rows past them have position and slots -1.
struct PackedContext {
  int64_t* count;      // [1]
  int64_t* rows;       // [T]     where each was
  int64_t* positions;  // [T]
  int64_t* slots;      // [G, T]
  int32_t* status;     // [T]
  char* features;      // [T, features_pitch]  bytes
  int64_t features_pitch;
};

// By the CTAs of a row.
__device__ void copy_row(const char* from, char* to, int64_t num_bytes) {
  const uint64_t bits = reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(num_bytes);
  with_unit(bits, [&]<class Unit>(std::type_identity<Unit>) {
    const int64_t step = int64_t{gridDim.y} * kBlock;
    for (int64_t i = blockIdx.y * kBlock + threadIdx.x; i < num_bytes / sizeof(Unit); i += step) {
      reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(from)[i];
    }
  });
}

__global__ void __launch_bounds__(kBlock)
    pack_context_kernel(const __grid_constant__ ContextKvParams p,
                        const __grid_constant__ PackedContext packed) {
  const int64_t row = blockIdx.x;
  int64_t num_before = 0;
  for (int64_t base = 0; base < row; base += kBlock) {
    const int64_t other = base + threadIdx.x;
    num_before += __syncthreads_count(other < row && is_stored(p, other));
  }
  const bool is_own = is_stored(p, row);
  // The rows that are not stored fill the places past the others, from the end.
  const int64_t place = is_own ? num_before : p.num_rows - 1 - (row - num_before);
  const bool is_first = blockIdx.y == 0;
  if (is_first && threadIdx.x == 0) {
    if (row == p.num_rows - 1) *packed.count = num_before + is_own;
    packed.rows[place] = row;
    packed.positions[place] = is_own ? p.positions[row] : -1;
    packed.status[place] = 0;
  }
  for (int64_t g = threadIdx.x; is_first && g < p.num_groups; g += kBlock) {
    packed.slots[g * p.num_rows + place] = is_own ? p.slots(g, row) : -1;
  }
  if (!is_own) return;
  const int64_t bytes = float_bytes(p.features.dtype);
  copy_row(static_cast<const char*>(p.features.data) + row * p.features.strides[0] * bytes,
           packed.features + place * packed.features_pitch, p.fc.depth * bytes);
}

__global__ void __launch_bounds__(kBlock)
    give_status_kernel(const __grid_constant__ ContextKvParams p,
                       const __grid_constant__ PackedContext packed) {
  const int64_t place = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (place < *packed.count) p.status.add(packed.rows[place], packed.status[place]);
}

// A matrix of the dtype of features, with as many rows as are stored.
struct Matrix {
  char* data;
  DType dtype;
  int64_t pitch;  // elements

  ArrayView<2> view() const { return {data, dtype, {pitch, 1}}; }
  ArrayOut<2> out() const { return {data, dtype, {pitch, 1}}; }
  ArrayView<3> heads(int64_t first_col, int64_t head_dim) const {
    return {data + first_col * float_bytes(dtype), dtype, {pitch, head_dim, 1}};
  }
};

VerifyGemmParams product(const GemmWeight& weight, const Matrix& x, const Matrix& out,
                         int64_t num_rows, const int64_t* count) {
  VerifyGemmParams p{};
  p.x = x.view();
  p.weight = weight;
  p.out = out.out();
  p.num_rows = num_rows;
  p.num_outputs = weight.num_rows;
  p.row_count = count;
  return p;
}

RopeAppendLayers append(const ContextKvParams& p, const ContextStack& stack, const Matrix& kv,
                        const PackedContext& packed) {
  RopeAppendLayers appends{};
  int64_t first_col = 0;
  for (int64_t i = 0; i < stack.num_layers; ++i) {
    const ContextKvLayer& layer = stack.layers[i];
    RopeAppendKvParams& a = appends.layers[i];
    a = layer_append(p, layer, kv, first_col, p.num_rows);
    a.positions = {packed.positions, 1, true};
    a.slots = {packed.slots + layer.group * p.num_rows, 1, true};
    a.status = {packed.status, 1};
    first_col += layer.weight.num_rows;
  }
  return appends;
}

}  // namespace

cudaError_t launch_context_kv(const ContextKvParams& p, const ContextKvPlan& plan, void* workspace,
                              cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  char* bytes = static_cast<char*>(workspace);
  const DType dtype = p.features.dtype;
  const auto at = [&](int64_t offset) { return reinterpret_cast<int64_t*>(bytes + offset); };
  const int64_t features_pitch = plan.pitch_bytes(p.fc.depth);
  const PackedContext packed{at(0),
                             at(plan.rows),
                             at(plan.positions),
                             at(plan.slots),
                             reinterpret_cast<int32_t*>(bytes + plan.status),
                             bytes + plan.features,
                             features_pitch};
  const auto matrix = [&](int64_t offset, int64_t num_cols) {
    return Matrix{bytes + offset, dtype, plan.pitch_bytes(num_cols) / plan.element_bytes};
  };
  const Matrix features = matrix(plan.features, p.fc.depth);
  const Matrix hidden = matrix(plan.hidden, p.fc.num_rows);
  const Matrix context = matrix(plan.context, p.fc.num_rows);

  const int64_t parts = pack_context_parts(p.fc.depth * plan.element_bytes);
  const dim3 grid(static_cast<uint32_t>(p.num_rows), static_cast<uint32_t>(parts));
  pack_context_kernel<<<grid, kBlock, 0, stream>>>(p, packed);
  cudaError_t error = cudaGetLastError();
  const auto then = [&](auto launch) {
    if (error == cudaSuccess) error = launch();
  };
  then([&] {
    return launch_verify_gemm(product(p.fc, features, hidden, p.num_rows, packed.count), stream);
  });
  then([&] {
    return launch_rmsnorm({hidden.view(), p.hidden_norm, p.eps, context.out(), p.num_rows,
                           p.fc.num_rows, packed.count},
                          stream);
  });
  for_each_stack(p, [&](const ContextStack& stack) {
    const Matrix kv = matrix(plan.kv, stack.weight.num_rows);
    then([&] {
      return launch_verify_gemm(product(stack.weight, context, kv, p.num_rows, packed.count),
                                stream);
    });
    then([&] {
      return launch_rope_append_layers(append(p, stack, kv, packed), stack.num_layers, stream);
    });
  });
  then([&] {
    if (p.status.data == nullptr) return cudaSuccess;
    give_status_kernel<<<(p.num_rows + kBlock - 1) / kBlock, kBlock, 0, stream>>>(p, packed);
    return cudaGetLastError();
  });
  return error;
}

}  // namespace dflash
