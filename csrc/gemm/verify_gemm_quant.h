// verify_gemm_w8 and verify_gemm_w4, torch side: verify_gemm with a quantised weight.
#pragma once

#include "gemm/verify_gemm.h"

namespace dflash {

struct QuantWeightArgs {
  const Tensor& weight;
  const std::string& format;
  int bits;
  bool has_int8_rows = false;
};

inline auto quant_weight_of(const Checks& checks, const Tensor& x, const QuantWeightArgs& args) {
  return [&checks, &x, args](int64_t depth, int64_t num_rows, bool is_pair) {
    const QuantFormat quant = quant_format(checks, args.format);
    if (quant.bits() != args.bits) {
      checks.fail("format must be one of pack_w", args.bits, ", got ", args.format);
    }
    GemmWeight w =
        quant_weight(checks, args.weight, quant, x.scalar_type(), depth, num_rows, is_pair);
    w.has_int8_rows = args.has_int8_rows;
    return w;
  };
}

inline bool int8_rows(const Checks& checks, const std::string& activations) {
  checks.one_of("activations", activations, {"float", "int8"});
  return activations == "int8";
}

template <auto kRun>
void verify_gemm_w8_out(const Tensor& x, const Tensor& weight, std::string format,
                        const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                        const OptionalTensor& norm_weight, double eps, const OptionalTensor& addend,
                        std::string act, const OptionalTensor& residual, const Tensor& out) {
  const Checks checks{"verify_gemm_w8", x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  run_gemm<kRun>(checks, args, quant_weight_of(checks, x, {weight, format, 8}), out);
}

template <auto kRun>
Tensor verify_gemm_w8(const Tensor& x, const Tensor& weight, std::string format,
                      const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                      const OptionalTensor& norm_weight, double eps, const OptionalTensor& addend,
                      std::string act, const OptionalTensor& residual,
                      std::optional<ScalarType> out_dtype) {
  const Checks checks{"verify_gemm_w8", x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  return new_gemm<kRun>(checks, args, quant_weight_of(checks, x, {weight, format, 8}), out_dtype);
}

template <auto kRun>
void verify_gemm_w4_out(const Tensor& x, const Tensor& weight, std::string format,
                        const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                        const OptionalTensor& norm_weight, double eps, const OptionalTensor& addend,
                        std::string act, const OptionalTensor& residual, std::string activations,
                        const Tensor& out) {
  const Checks checks{"verify_gemm_w4", x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  const bool is_int8 = int8_rows(checks, activations);
  run_gemm<kRun>(checks, args, quant_weight_of(checks, x, {weight, format, 4, is_int8}), out);
}

template <auto kRun>
Tensor verify_gemm_w4(const Tensor& x, const Tensor& weight, std::string format,
                      const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                      const OptionalTensor& norm_weight, double eps, const OptionalTensor& addend,
                      std::string act, const OptionalTensor& residual, std::string activations,
                      std::optional<ScalarType> out_dtype) {
  const Checks checks{"verify_gemm_w4", x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  const bool is_int8 = int8_rows(checks, activations);
  return new_gemm<kRun>(checks, args, quant_weight_of(checks, x, {weight, format, 4, is_int8}),
                        out_dtype);
}

}  // namespace dflash
