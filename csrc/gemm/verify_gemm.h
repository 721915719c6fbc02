// verify_gemm, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const VerifyGemmParams&, const Tensor& x): x is there for its device.
#pragma once

#include <string>

#include "gemm/weight.h"

namespace dflash {

inline Activation activation(const Checks& checks, const std::string& act) {
  checks.one_of("act", act, {"none", "silu", "silu_mul"});
  return act == "none" ? Activation::kNone
                       : (act == "silu" ? Activation::kSilu : Activation::kSiluMul);
}

// The sizes of a call and its weight: what the output's shape needs.
inline VerifyGemmParams verify_gemm_sizes(const Checks& checks, const Tensor& x,
                                          const Tensor& weight, std::optional<int64_t> num_outputs,
                                          const std::string& act) {
  VerifyGemmParams p{};
  p.x = checks.array<2>("x", x, kFloats, "[M, K]", {-1, -1});
  checks.last_contiguous("x", x);
  p.num_rows = x.size(0);
  p.act = activation(checks, act);
  const bool is_pair = p.act == Activation::kSiluMul;
  if (num_outputs) checks.at_least<int64_t>("num_outputs", *num_outputs, 0);
  const int64_t num_rows = num_outputs ? *num_outputs * (is_pair ? 2 : 1) : -1;
  p.weight = gemm_weight(checks, weight, x.scalar_type(), x.size(1), num_rows, is_pair);
  p.num_outputs = is_pair ? p.weight.num_rows / 2 : p.weight.num_rows;
  return p;
}

// An optional term [M, cols]; its last dimension is contiguous.
inline ArrayView<2> gemm_term(const Checks& checks, const char* name, const OptionalTensor& t,
                              const char* dims, int64_t num_rows, int64_t cols) {
  if (t) {
    checks.tensor(name, *t, kFloats, dims, {num_rows, cols});
    checks.last_contiguous(name, *t);
  }
  return checks.array<2>(name, t, kFloats, dims, {num_rows, cols});
}

template <auto kRun>
void verify_gemm_out(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                     std::optional<int64_t> num_outputs, const OptionalTensor& norm_weight,
                     double eps, const OptionalTensor& addend, std::string act,
                     const OptionalTensor& residual, const Tensor& out) {
  const Checks checks{"verify_gemm", x};
  VerifyGemmParams p = verify_gemm_sizes(checks, x, weight, num_outputs, act);
  const int64_t rows = p.num_rows, width = p.weight.num_rows;
  if (bias) {
    const auto view = checks.array<1>("bias", *bias, kFloats, "[N]", {width});
    checks.last_contiguous("bias", *bias);
    p.bias = {view.data, view.dtype, {0, 1}};
  }
  p.norm_weight = checks.array<1>("norm_weight", norm_weight, kFloats, "[K]", {p.weight.depth});
  if (norm_weight) checks.last_contiguous("norm_weight", *norm_weight);
  checks.at_least("eps", eps, 0.0);
  p.eps = static_cast<float>(eps);
  p.addend = gemm_term(checks, "addend", addend, "[M, N]", rows, width);
  p.residual = gemm_term(checks, "residual", residual, "[M, num_outputs]", rows, p.num_outputs);
  p.out = checks.array_out<2>("out", out, kFloats, "[M, num_outputs]", {rows, p.num_outputs});
  kRun(p, x);
}

template <auto kRun>
Tensor verify_gemm(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                   std::optional<int64_t> num_outputs, const OptionalTensor& norm_weight,
                   double eps, const OptionalTensor& addend, std::string act,
                   const OptionalTensor& residual, std::optional<ScalarType> out_dtype) {
  const Checks checks{"verify_gemm", x};
  const auto p = verify_gemm_sizes(checks, x, weight, num_outputs, act);
  const ScalarType dtype = out_dtype.value_or(x.scalar_type());
  if (std::ranges::find(kFloats, dtype) == kFloats.end()) {
    checks.fail("out_dtype must be bfloat16 or float16 or float32, got ", dtype_name(dtype));
  }
  Tensor out = new_tensor(x, {p.num_rows, p.num_outputs}, dtype);
  verify_gemm_out<kRun>(x, weight, bias, num_outputs, norm_weight, eps, addend, std::move(act),
                        residual, out);
  return out;
}

}  // namespace dflash
