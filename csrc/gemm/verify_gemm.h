// The verify_gemm ops, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const VerifyGemmParams&, const Tensor& x): x is there for its device.
#pragma once

#include "gemm/quant_weight.h"

namespace dflash {

inline Activation activation(const Checks& checks, const std::string& act) {
  checks.one_of("act", act, {"none", "silu", "silu_mul"});
  return act == "none" ? Activation::kNone
                       : (act == "silu" ? Activation::kSilu : Activation::kSiluMul);
}

// What the ops share. get_weight(depth, num_rows, is_pair) -> GemmWeight.
struct GemmArgs {
  const Tensor& x;
  const OptionalTensor& bias;
  std::optional<int64_t> num_outputs;
  const OptionalTensor& norm_weight;
  double eps;
  const OptionalTensor& addend;
  const std::string& act;
  const OptionalTensor& residual;
};

// The sizes of a call and its weight: what the output's shape needs.
template <class GetWeight>
VerifyGemmParams verify_gemm_sizes(const Checks& checks, const GemmArgs& args,
                                   const GetWeight& get_weight) {
  VerifyGemmParams p{};
  p.x = checks.array<2>("x", args.x, kFloats, "[M, K]", {-1, -1});
  checks.last_contiguous("x", args.x);
  p.num_rows = args.x.size(0);
  p.act = activation(checks, args.act);
  const bool is_pair = p.act == Activation::kSiluMul;
  if (args.num_outputs) checks.at_least<int64_t>("num_outputs", *args.num_outputs, 0);
  p.weight = get_weight(args.x.size(1),
                        args.num_outputs ? *args.num_outputs * (is_pair ? 2 : 1) : -1, is_pair);
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

template <auto kRun, class GetWeight>
void run_gemm(const Checks& checks, const GemmArgs& args, const GetWeight& get_weight,
              const Tensor& out) {
  VerifyGemmParams p = verify_gemm_sizes(checks, args, get_weight);
  const int64_t rows = p.num_rows, width = p.weight.num_rows;
  if (args.bias) {
    const auto view = checks.array<1>("bias", *args.bias, kFloats, "[N]", {width});
    checks.last_contiguous("bias", *args.bias);
    p.bias = {view.data, view.dtype, {0, 1}};
  }
  p.norm_weight =
      checks.array<1>("norm_weight", args.norm_weight, kFloats, "[K]", {p.weight.depth});
  if (args.norm_weight) checks.last_contiguous("norm_weight", *args.norm_weight);
  checks.at_least("eps", args.eps, 0.0);
  p.eps = static_cast<float>(args.eps);
  p.addend = gemm_term(checks, "addend", args.addend, "[M, N]", rows, width);
  p.residual =
      gemm_term(checks, "residual", args.residual, "[M, num_outputs]", rows, p.num_outputs);
  p.out = checks.array_out<2>("out", out, kFloats, "[M, num_outputs]", {rows, p.num_outputs});
  kRun(p, args.x);
}

template <auto kRun, class GetWeight>
Tensor new_gemm(const Checks& checks, const GemmArgs& args, const GetWeight& get_weight,
                std::optional<ScalarType> out_dtype) {
  const auto p = verify_gemm_sizes(checks, args, get_weight);
  const ScalarType dtype = out_dtype.value_or(args.x.scalar_type());
  if (std::ranges::find(kFloats, dtype) == kFloats.end()) {
    checks.fail("out_dtype must be bfloat16 or float16 or float32, got ", dtype_name(dtype));
  }
  Tensor out = new_tensor(args.x, {p.num_rows, p.num_outputs}, dtype);
  run_gemm<kRun>(checks, args, get_weight, out);
  return out;
}

inline auto weight_of(const Checks& checks, const Tensor& x, const Tensor& weight) {
  return [&](int64_t depth, int64_t num_rows, bool is_pair) {
    return gemm_weight(checks, weight, x.scalar_type(), depth, num_rows, is_pair);
  };
}

template <auto kRun>
void verify_gemm_out(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                     std::optional<int64_t> num_outputs, const OptionalTensor& norm_weight,
                     double eps, const OptionalTensor& addend, std::string act,
                     const OptionalTensor& residual, const Tensor& out) {
  const Checks checks{"verify_gemm", x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  run_gemm<kRun>(checks, args, weight_of(checks, x, weight), out);
}

template <auto kRun>
Tensor verify_gemm(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                   std::optional<int64_t> num_outputs, const OptionalTensor& norm_weight,
                   double eps, const OptionalTensor& addend, std::string act,
                   const OptionalTensor& residual, std::optional<ScalarType> out_dtype) {
  const Checks checks{"verify_gemm", x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  return new_gemm<kRun>(checks, args, weight_of(checks, x, weight), out_dtype);
}

}  // namespace dflash
