// pack_weight, unpack: a weight into the order in which the kernels read it, and back.
//
//   grid   enough CTAs of 256 threads; a thread moves one element at a time
//   reads  every element once, in runs of 64 bytes or more
//
// Reference: python/dflash_ops/reference/gemm.py

#include "gemm/cuda/launch.h"
#include "gemm/cuda/plan.h"

namespace dflash {
namespace {

template <class T>
__global__ void pack_weight_kernel(const __grid_constant__ PackWeightParams p) {
  const WeightLayout layout(p.plain);
  const int64_t block_elements = kTileRows * layout.depth;
  const int64_t count = layout.num_blocks * block_elements;
  const T* from = static_cast<const T*>(p.plain.data);
  for (int64_t i = blockIdx.x * int64_t{kPackThreads} + threadIdx.x; i < count;
       i += int64_t{kPackThreads} * gridDim.x) {
    const int64_t block = i / block_elements, in_block = i % block_elements;
    const int64_t chunk = in_block / (kTileRows * layout.chunk_depth);
    const int64_t in_chunk = in_block % (kTileRows * layout.chunk_depth);
    const int64_t pitch = layout.pitch(chunk);
    const int in_block_row = static_cast<int>(in_chunk / pitch);
    const int64_t row = layout.row_at(block, in_block_row);
    const int64_t k =
        chunk * layout.chunk_depth + layout.place_in_row(chunk, in_block_row, in_chunk % pitch);
    static_cast<T*>(p.packed)[i] =
        row >= 0 && k < p.plain.depth ? from[row * p.plain.row_stride + k] : T{};
  }
}

template <class T>
__global__ void unpack_kernel(const __grid_constant__ UnpackParams p) {
  const WeightLayout layout(p.packed);
  const int64_t depth = p.packed.depth;
  const int64_t count = p.packed.num_rows * depth;
  for (int64_t i = blockIdx.x * int64_t{kPackThreads} + threadIdx.x; i < count;
       i += int64_t{kPackThreads} * gridDim.x) {
    const int64_t row = i / depth, k = i % depth;
    const auto [block, in_block] = layout.place_of_row(row);
    const T* from = static_cast<const T*>(p.packed.data);
    p.out.at<T>(row)[k * p.out.strides[1]] = from[layout.offset(block, in_block, k)];
  }
}

}  // namespace

cudaError_t launch_pack_weight(const PackWeightParams& p, cudaStream_t stream) {
  const WeightLayout layout(p.plain);
  const int64_t count = layout.num_blocks * kTileRows * layout.depth;
  if (count == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  if (float_bytes(p.plain.dtype) == 4) {
    pack_weight_kernel<uint32_t><<<pack_ctas(count), kPackThreads, 0, stream>>>(p);
  } else {
    pack_weight_kernel<uint16_t><<<pack_ctas(count), kPackThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

cudaError_t launch_unpack(const UnpackParams& p, cudaStream_t stream) {
  const int64_t count = p.packed.num_rows * p.packed.depth;
  if (count == 0) return cudaSuccess;
  if (float_bytes(p.packed.dtype) == 4) {
    unpack_kernel<uint32_t><<<pack_ctas(count), kPackThreads, 0, stream>>>(p);
  } else {
    unpack_kernel<uint16_t><<<pack_ctas(count), kPackThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace dflash
