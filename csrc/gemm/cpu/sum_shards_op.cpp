// sum_shards on a CPU: one row after another, in an fp32 scratch row.
//
// Reference: python/dflash_ops/reference/shards.py

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <vector>

#include "common/dispatch.h"
#include "common/rms.h"
#include "gemm/plan.h"
#include "gemm/sum_shards.h"

namespace dflash {
namespace {

void add_row(const void* data, DType dtype, std::vector<float>& sum, bool is_first) {
  (void)with_dtype<float, BF16, F16>(dtype, [&]<class T>(std::type_identity<T>) {
    const T* x = static_cast<const T*>(data);
    for (size_t c = 0; c < sum.size(); ++c) {
      sum[c] = is_first ? to_float(x[c]) : sum[c] + to_float(x[c]);
    }
  });
}

template <class T>
void write_row(const SumShardsParams& p, int64_t row, std::vector<float>& sum) {
  T* out = p.sum.at<T>(row);
  for (int64_t c = 0; c < p.num_cols; ++c) {
    const T value = from_float<T>(sum[c]);
    out[c * p.sum.strides[1]] = value;
    sum[c] = to_float(value);
  }
  if (!p.norm_weight) return;
  std::vector<float> weight(sum.size());
  add_row(p.norm_weight.data, p.norm_weight.dtype, weight, true);
  const float scale = rms_scale(sum.data(), p.num_cols, p.eps);
  T* normed = p.normed.at<T>(row);
  for (int64_t c = 0; c < p.num_cols; ++c) {
    normed[c * p.normed.strides[1]] = from_float<T>(rms_apply(sum[c], scale, weight[c]));
  }
}

void run_cpu(const SumShardsParams& p, int32_t) {
  torch::stable::parallel_for(
      0, p.num_rows, row_grain(p.num_cols * (p.num_shards + 2)), [&](int64_t begin, int64_t end) {
        std::vector<float> sum(p.num_cols);
        for (int64_t row = begin; row < end; ++row) {
          std::ranges::fill(sum, 0.0f);
          (void)with_dtype<float, BF16, F16>(p.shards.dtype, [&]<class T>(std::type_identity<T>) {
            for (int64_t s = 0; s < p.num_shards; ++s) {
              add_row(p.shards.at<T>(s) + row * p.shards.strides[1], p.shards.dtype, sum, s == 0);
            }
          });
          if (p.residual) {
            (void)with_dtype<float, BF16, F16>(
                p.residual.dtype, [&]<class T>(std::type_identity<T>) {
                  add_row(p.residual.at<T>(row), p.residual.dtype, sum, p.num_shards == 0);
                });
          }
          (void)with_dtype<float, BF16, F16>(
              p.sum.dtype, [&]<class T>(std::type_identity<T>) { write_row<T>(p, row, sum); });
        }
      });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("sum_shards", TORCH_BOX(&sum_shards<run_cpu>));
  m.impl("sum_shards.out", TORCH_BOX(&sum_shards_out<run_cpu>));
}

}  // namespace dflash
