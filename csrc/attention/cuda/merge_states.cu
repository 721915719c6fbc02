// merge_states: attention over some keys, and over others, as attention over all of them.
//
//   grid   merge_ctas                so many threads per row and head that each has a vector
//   block  kMergeBlock
//   smem   none
//   moves  both outputs in, one out, once; nothing of a side without keys
//
// Reference: python/dflash_ops/reference/attention.py

#include "attention/cuda/launch.h"
#include "attention/cuda/plan.h"
#include "attention/merge.h"
#include "device/vector.cuh"

namespace dflash {
namespace {

template <class T>
__global__ void __launch_bounds__(kMergeBlock)
    merge_states_kernel(const __grid_constant__ MergeStatesParams p, int threads_per_pair) {
  const int pairs_per_cta = kMergeBlock / threads_per_pair;
  const int64_t pair = int64_t{blockIdx.x} * pairs_per_cta + threadIdx.x / threads_per_pair;
  const int lane = static_cast<int>(threadIdx.x % threads_per_pair);
  const int64_t row = pair / p.num_heads, head = pair % p.num_heads;
  if (row >= p.num_rows) return;

  float sink = kEmpty;
  (void)with_dtype<float, BF16, F16>(p.sinks.dtype, [&]<class S>(std::type_identity<S>) {
    if (p.sinks) sink = to_float(*p.sinks.at<S>(head));
  });
  const MergeWeights w = merge_weights(p.lse_a.at<float>(row)[head * p.lse_a.strides[1]],
                                       p.lse_b.at<float>(row)[head * p.lse_b.strides[1]], sink);
  if (lane == 0) p.lse.at<float>(row)[head * p.lse.strides[1]] = w.lse;

  const auto load = [&](const ArrayView<3>& from, int64_t col, float (&values)[kVector]) {
    const T* x = from.at<T>(row) + head * from.strides[1] + col * from.strides[2];
    load_vector(x, from.strides[2], p.v_dim - col, values);
  };
  for (int64_t col = kVector * lane; col < p.v_dim; col += kVector * threads_per_pair) {
    float a[kVector] = {}, b[kVector] = {};
    if (w.a != 0) load(p.out_a, col, a);
    if (w.b != 0) load(p.out_b, col, b);
    for (int j = 0; j < kVector; ++j) a[j] = w.merge(a[j], b[j]);
    T* out = p.out.at<T>(row) + head * p.out.strides[1] + col * p.out.strides[2];
    store_vector(out, p.out.strides[2], p.v_dim - col, a);
  }
}

}  // namespace

cudaError_t launch_merge_states(const MergeStatesParams& p, cudaStream_t stream) {
  const int threads_per_pair = merge_threads_per_pair(p.v_dim);
  const int64_t num_ctas = merge_ctas(p.num_rows * p.num_heads, threads_per_pair);
  if (num_ctas == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  (void)with_dtype<float, BF16, F16>(p.out.dtype, [&]<class T>(std::type_identity<T>) {
    merge_states_kernel<T><<<num_ctas, kMergeBlock, 0, stream>>>(p, threads_per_pair);
  });
  return cudaGetLastError();
}

}  // namespace dflash
