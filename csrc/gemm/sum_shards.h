// sum_shards, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const SumShardsParams&, int32_t device_idx).
#pragma once

#include <optional>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "gemm/params.h"

namespace dflash {

template <auto kRun>
void sum_shards_out(const Tensor& shards, const OptionalTensor& residual,
                    const OptionalTensor& norm_weight, double eps,
                    std::optional<ScalarType> out_dtype, const Tensor& sum, const Tensor& normed) {
  const Checks checks{"sum_shards", shards};
  SumShardsParams p{};
  p.shards = checks.array<3>("shards", shards, kFloats, "[S, M, N]", {-1, -1, -1});
  checks.last_contiguous("shards", shards);
  p.num_shards = shards.size(0);
  p.num_rows = shards.size(1);
  p.num_cols = shards.size(2);
  p.residual = checks.array<2>("residual", residual, kFloats, "[M, N]", {p.num_rows, p.num_cols});
  if (residual) checks.last_contiguous("residual", *residual);
  p.norm_weight = checks.array<1>("norm_weight", norm_weight, kFloats, "[N]", {p.num_cols});
  if (norm_weight) checks.last_contiguous("norm_weight", *norm_weight);
  checks.at_least("eps", eps, 0.0);
  p.eps = static_cast<float>(eps);
  const ScalarType dtype = out_dtype.value_or(shards.scalar_type());
  p.sum = checks.array_out<2>("sum", sum, {dtype}, "[M, N]", {p.num_rows, p.num_cols});
  p.normed = checks.array_out<2>("normed", normed, {dtype}, norm_weight ? "[M, N]" : "[0, N]",
                                 {norm_weight ? p.num_rows : 0, p.num_cols});
  kRun(p, shards.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor> sum_shards(const Tensor& shards, const OptionalTensor& residual,
                                      const OptionalTensor& norm_weight, double eps,
                                      std::optional<ScalarType> out_dtype) {
  const Checks checks{"sum_shards", shards};
  checks.tensor("shards", shards, kFloats, "[S, M, N]", {-1, -1, -1});
  const ScalarType dtype = out_dtype.value_or(shards.scalar_type());
  if (std::ranges::find(kFloats, dtype) == kFloats.end()) {
    checks.fail("out_dtype must be bfloat16 or float16 or float32, got ", dtype_name(dtype));
  }
  const int64_t rows = shards.size(1), cols = shards.size(2);
  std::tuple outs{new_tensor(shards, {rows, cols}, dtype),
                  new_tensor(shards, {norm_weight ? rows : 0, cols}, dtype)};
  sum_shards_out<kRun>(shards, residual, norm_weight, eps, out_dtype, std::get<0>(outs),
                       std::get<1>(outs));
  return outs;
}

}  // namespace dflash
