// rmsnorm, torch side. A backend is a function void run(const RmsNormParams&, int32_t device_idx).
#pragma once

#include "common/check.h"
#include "gemm/params.h"

namespace dflash {

template <auto kRun>
void rmsnorm_out(const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  const Checks checks{"rmsnorm", x};
  RmsNormParams p{};
  p.x = checks.array<2>("x", x, kFloats, "[M, H]", {-1, -1});
  checks.last_contiguous("x", x);
  p.num_rows = x.size(0);
  p.depth = x.size(1);
  p.weight = checks.array<1>("weight", weight, kFloats, "[H]", {p.depth});
  checks.last_contiguous("weight", weight);
  checks.at_least("eps", eps, 0.0);
  p.eps = static_cast<float>(eps);
  p.out = checks.array_out<2>("out", out, kFloats, "[M, H]", {p.num_rows, p.depth});
  kRun(p, x.get_device_index());
}

template <auto kRun>
Tensor rmsnorm(const Tensor& x, const Tensor& weight, double eps) {
  Checks{"rmsnorm", x}.tensor("x", x, kFloats, "[M, H]", {-1, -1});
  Tensor out = new_tensor(x, x.sizes(), x.scalar_type());
  rmsnorm_out<kRun>(x, weight, eps, out);
  return out;
}

}  // namespace dflash
