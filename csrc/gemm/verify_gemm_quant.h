// verify_gemm_w8 and verify_gemm_w4, torch side: verify_gemm with a quantised weight.
#pragma once

#include "gemm/verify_gemm.h"

namespace dflash {

struct QuantWeightArgs {
  const Tensor& weight;
  const std::string& format;
  const std::string& activations;
  int bits;
};

inline auto quant_weight_of(const Checks& checks, const Tensor& x, const QuantWeightArgs& args) {
  return [&checks, &x, args](int64_t depth, int64_t num_rows, bool is_pair) {
    const QuantFormat quant = quant_format(checks, args.format);
    if (quant.bits() != args.bits) {
      checks.fail("format must be one of pack_w", args.bits, ", got ", args.format);
    }
    checks.one_of("activations", args.activations, {"float", "int8"});
    const bool is_int8 = args.activations == "int8";
    if (is_int8 && quant.codes == Codes::kF8E4M3) {
      checks.fail("activations must be float with fp8 weights, got int8");
    }
    GemmWeight w =
        quant_weight(checks, args.weight, quant, x.scalar_type(), depth, num_rows, is_pair);
    w.has_int8_rows = is_int8;
    return w;
  };
}

template <int kBits>
const char* quant_op() {
  return kBits == 4 ? "verify_gemm_w4" : "verify_gemm_w8";
}

template <int kBits, auto kRun>
void verify_gemm_quant_out(const Tensor& x, const Tensor& weight, std::string format,
                           const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                           const OptionalTensor& norm_weight, double eps,
                           const OptionalTensor& addend, std::string act,
                           const OptionalTensor& residual, std::string activations,
                           const Tensor& out) {
  const Checks checks{quant_op<kBits>(), x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  run_gemm<kRun>(checks, args, quant_weight_of(checks, x, {weight, format, activations, kBits}),
                 out);
}

template <int kBits, auto kRun>
Tensor verify_gemm_quant(const Tensor& x, const Tensor& weight, std::string format,
                         const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                         const OptionalTensor& norm_weight, double eps,
                         const OptionalTensor& addend, std::string act,
                         const OptionalTensor& residual, std::string activations,
                         std::optional<ScalarType> out_dtype) {
  const Checks checks{quant_op<kBits>(), x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  return new_gemm<kRun>(
      checks, args, quant_weight_of(checks, x, {weight, format, activations, kBits}), out_dtype);
}

}  // namespace dflash
