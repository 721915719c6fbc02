// verify_gemm_w8 and verify_gemm_w4, torch side: verify_gemm with a quantised weight.
#pragma once

#include "gemm/verify_gemm.h"

namespace dflash {

enum class QuantBits { k8, k4 };

inline const char* quant_op(QuantBits bits) {
  return bits == QuantBits::k4 ? "verify_gemm_w4" : "verify_gemm_w8";
}

template <QuantBits kBits>
auto quant_weight_of(const Checks& checks, const Tensor& x, const Tensor& weight,
                     const std::string& format) {
  return [&](int64_t depth, int64_t num_rows, bool is_pair) {
    const QuantFormat quant = quant_format(checks, format);
    if (quant.bits() != (kBits == QuantBits::k4 ? 4 : 8)) {
      checks.fail("format must be one of ", kBits == QuantBits::k4 ? "pack_w4" : "pack_w8",
                  ", got ", format);
    }
    return quant_weight(checks, weight, quant, x.scalar_type(), depth, num_rows, is_pair);
  };
}

template <QuantBits kBits, auto kRun>
void verify_gemm_quant_out(const Tensor& x, const Tensor& weight, std::string format,
                           const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                           const OptionalTensor& norm_weight, double eps,
                           const OptionalTensor& addend, std::string act,
                           const OptionalTensor& residual, const Tensor& out) {
  const Checks checks{quant_op(kBits), x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  run_gemm<kRun>(checks, args, quant_weight_of<kBits>(checks, x, weight, format), out);
}

template <QuantBits kBits, auto kRun>
Tensor verify_gemm_quant(const Tensor& x, const Tensor& weight, std::string format,
                         const OptionalTensor& bias, std::optional<int64_t> num_outputs,
                         const OptionalTensor& norm_weight, double eps,
                         const OptionalTensor& addend, std::string act,
                         const OptionalTensor& residual, std::optional<ScalarType> out_dtype) {
  const Checks checks{quant_op(kBits), x};
  const GemmArgs args{x, bias, num_outputs, norm_weight, eps, addend, act, residual};
  return new_gemm<kRun>(checks, args, quant_weight_of<kBits>(checks, x, weight, format), out_dtype);
}

}  // namespace dflash
