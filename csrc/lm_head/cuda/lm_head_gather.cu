// lm_head_gather: the logits of the given ids, read as rows of the weight; the pass over the head,
// which sums each row's law and counts what is better; and the results.
//
//   grid   num_rows, ceil(K / 16); of the results num_rows
//   block  kPickShape.threads() = 128; kFinishBlock = 256
//   smem   74 KB; none
//   reads  the given ids' rows of the weight; what the CTAs left: see head_scan.cu
//
// Reference: python/dflash_ops/reference/lm_head.py

#include "device/launch.cuh"
#include "lm_head/cuda/finish.cuh"
#include "lm_head/cuda/launch.h"
#include "lm_head/cuda/launch_sm90.h"
#include "lm_head/cuda/passes.h"
#include "lm_head/cuda/product.cuh"

namespace dflash {
namespace {

// A sum has the bits that it has in the pass: the same chains over k.
template <class T>
__global__ void __launch_bounds__(kPickShape.threads())
    head_given_kernel(const __grid_constant__ HeadLaunch c) {
  extern __shared__ __align__(16) char shared[];
  const int64_t i = blockIdx.x, first = int64_t{blockIdx.y} * kPickShape.weight_rows();
  const HeadRow& row = c.rows[i];
  if (row.is_padded()) return;
  const auto place_of = [&](int j) { return given_place(c, i, first + j); };
  compute_head<T, kPickShape>(c, shared, place_of, i, 1);
  const int j = static_cast<int>(threadIdx.x);
  if (j >= kPickShape.weight_rows() || first + j >= c.ids.num_cols) return;
  c.given_keys[i * c.ids.num_cols + first + j] =
      given_key(c, row, given_id(c, i, first + j), sum_at<kPickShape>(shared, 0, j));
}

__device__ void write(const LmHeadGatherParams& p, int64_t i, int64_t k, float logprob,
                      float tempered, int64_t rank) {
  p.logprobs.at<float>(i)[k * p.logprobs.strides[1]] = logprob;
  p.tempered.at<float>(i)[k * p.tempered.strides[1]] = tempered;
  p.ranks.set(i, k, rank);
}

__global__ void __launch_bounds__(kFinishBlock)
    head_gather_kernel(const __grid_constant__ HeadLaunch c,
                       const __grid_constant__ LmHeadGatherParams p) {
  const int64_t i = blockIdx.x, k = threadIdx.x;
  const HeadRow& row = c.rows[i];
  const bool is_given = k < p.ids.num_cols;
  float lse = kMinusInf;
  int32_t status = row.status();
  if (row.is_padded()) {
    if (is_given) write(p, i, k, kMinusInf, kMinusInf, -1);
  } else {
    lse = lse_of_row(c, i, &TileNodes::raw);
    const float tempered_lse = tempered_lse_of_row(c, i, lse);
    const uint64_t key = is_given ? c.given_keys[i * p.ids.num_cols + k] : 0;
    if (key != 0) {
      int64_t rank = 0;
      for (int64_t group = 0; group < c.plan.num_groups; ++group) {
        const int64_t list = i * c.plan.num_groups + group;
        rank += static_cast<int64_t>(c.keys[list * WarpKeys::kCount + k]);
      }
      const float z = key_value(key);
      const float greedy = rank == 0 ? 0.0f : kMinusInf;
      write(p, i, k, z - lse,
            row.law.is_greedy ? greedy : z * row.law.inv_temperature - tempered_lse, rank);
    } else if (is_given) {
      write(p, i, k, kMinusInf, kMinusInf, -1);
    }
    const int64_t id = is_given ? p.ids(i, k) : -1;
    const bool is_bad = id < -1 || id >= p.head.options.vocab_size;
    if (__syncthreads_or(is_bad)) status |= kBadDraftId;
    if (lse == kMinusInf) status |= kNoFiniteLogit;
  }
  if (k > 0) return;
  *p.lse.at<float>(i) = lse;
  p.head.status.add(i, status);
}

template <class T>
cudaError_t launch_given(const HeadLaunch& c, cudaStream_t stream) {
  if (const auto error = launch_head_given_sm90(c, stream)) return *error;
  const int64_t tiles = (c.ids.num_cols + kPickShape.weight_rows() - 1) / kPickShape.weight_rows();
  const dim3 grid(static_cast<uint32_t>(c.head.options.num_rows), static_cast<uint32_t>(tiles));
  return launch_with_memory(head_given_kernel<T>, grid, kPickShape.threads(),
                            kPickShape.smem_bytes(), stream, c);
}

}  // namespace

cudaError_t launch_lm_head_gather(const LmHeadGatherParams& p, void* workspace,
                                  cudaStream_t stream) {
  if (p.head.options.num_rows == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  HeadLaunch c = head_launch(HeadOp::kGather, p.head, workspace, p.ids.num_cols);
  c.sampling = p.sampling;
  c.ids = p.ids;
  cudaError_t error = launch_head_rows(c, stream);
  if (p.ids.num_cols > 0) {
    const auto launch = [&]<class T>(std::type_identity<T>) {
      if (error == cudaSuccess) error = launch_given<T>(c, stream);
    };
    if (p.head.weight.quant) {
      launch(std::type_identity<QuantisedHead>());
    } else {
      (void)with_dtype<float, BF16, F16>(p.head.h.dtype, launch);
    }
  }
  if (error == cudaSuccess) error = launch_head_scan(c, stream);
  if (error != cudaSuccess) return error;
  head_gather_kernel<<<p.head.options.num_rows, kFinishBlock, 0, stream>>>(c, p);
  return cudaGetLastError();
}

}  // namespace dflash
