// sum_shards on a CPU: one row after another, in an fp32 scratch row.
//
// Reference: python/dflash_ops/reference/shards.py

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <vector>

#include "common/cpu/fp32_row.h"
#include "common/dispatch.h"
#include "gemm/plan.h"
#include "gemm/sum_shards.h"

namespace dflash {
namespace {

// The i-th row of a matrix of a float type.
const char* row_of(const void* data, DType dtype, int64_t stride, int64_t i) {
  return static_cast<const char*>(data) + i * stride * float_bytes(dtype);
}

struct Sum {
  const SumShardsParams& p;
  const RowKernels& kernels = row_kernels();
  std::vector<float> row = std::vector<float>(p.num_cols);
  std::vector<float> weight = std::vector<float>(p.norm_weight ? p.num_cols : 0);

  void add(const void* data, DType dtype, bool is_first) {
    (is_first ? kernels.load : kernels.add)(data, dtype, p.num_cols, row.data());
  }
  template <class T>
  void write(int64_t i) {
    constexpr DType kDType = dtype_of<T>();
    kernels.store(row.data(), p.num_cols, kDType, p.sum.at<T>(i), p.sum.strides[1]);
    if (!p.norm_weight) return;
    kernels.round(kDType, p.num_cols, row.data());
    kernels.norm(weight.data(), p.eps, kDType, p.num_cols, row.data());
    kernels.store(row.data(), p.num_cols, kDType, p.normed.at<T>(i), p.normed.strides[1]);
  }

  void run(int64_t begin, int64_t end) {
    if (p.norm_weight) {
      kernels.load(p.norm_weight.data, p.norm_weight.dtype, p.num_cols, weight.data());
    }
    const DType dtype = p.shards.dtype;
    const int64_t* strides = p.shards.strides;
    for (int64_t i = begin; i < end; ++i) {
      if (p.num_shards == 0) std::ranges::fill(row, 0.0f);
      for (int64_t s = 0; s < p.num_shards; ++s) {
        const char* shard = row_of(p.shards.data, dtype, strides[0], s);
        add(row_of(shard, dtype, strides[1], i), dtype, s == 0);
      }
      if (p.residual) {
        add(row_of(p.residual.data, p.residual.dtype, p.residual.strides[0], i), p.residual.dtype,
            p.num_shards == 0);
      }
      (void)with_dtype<float, BF16, F16>(p.sum.dtype,
                                         [&]<class T>(std::type_identity<T>) { write<T>(i); });
    }
  }
};

void run_cpu(const SumShardsParams& p, int32_t) {
  torch::stable::parallel_for(0, p.num_rows, row_grain(p.num_cols * (p.num_shards + 2)),
                              [&](int64_t begin, int64_t end) { Sum{p}.run(begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("sum_shards", TORCH_BOX(&sum_shards<run_cpu>));
  m.impl("sum_shards.out", TORCH_BOX(&sum_shards_out<run_cpu>));
}

}  // namespace dflash
