// The arguments that all lm_head ops share, checked in one place.
#pragma once

#include "gemm/quant_weight.h"
#include "lm_head/params.h"
#include "lm_head/plan.h"
#include "sample/options.h"

namespace dflash {

struct HeadArgs {
  const Tensor& h;
  const Tensor& weight;
  const OptionalTensor& bias;
  const std::optional<std::string>& weight_format;  // quantised, if given
  const OptionalTensor& norm_weight;
  double eps;
  bool round_logits;
  const OptionalTensor& status;
  LogitArgs logits;
};

inline GemmWeight head_weight(const Checks& checks, const HeadArgs& args, int64_t depth) {
  const ScalarType dtype = args.h.scalar_type();
  if (!args.weight_format) return gemm_weight(checks, args.weight, dtype, depth, -1, false);
  const QuantFormat quant = quant_format(checks, *args.weight_format, "weight_format");
  return quant_weight(checks, args.weight, quant, dtype, depth, -1, false);
}

inline HeadParams head_params(const Checks& checks, const HeadArgs& args) {
  HeadParams p{};
  p.h = checks.array<2>("h", args.h, kFloats, "[num_rows, H]", {-1, -1});
  checks.last_contiguous("h", args.h);
  const int64_t depth = args.h.size(1);
  p.norm_weight = checks.array<1>("norm_weight", args.norm_weight, kFloats, "[H]", {depth});
  if (args.norm_weight) checks.last_contiguous("norm_weight", *args.norm_weight);
  checks.at_least("eps", args.eps, 0.0);
  p.eps = static_cast<float>(args.eps);
  p.weight = head_weight(checks, args, depth);
  if (p.weight.is_packed && args.logits.vocab_size) {  // its padding holds no ids
    p.weight.num_rows = std::clamp<int64_t>(*args.logits.vocab_size - args.logits.vocab_start, 0,
                                            p.weight.num_rows);
  }
  const int64_t columns = p.weight.num_rows;
  p.bias = checks.array<1>("bias", args.bias, kFloats, "[V]", {columns});
  if (args.bias) checks.last_contiguous("bias", *args.bias);
  p.round_to = args.round_logits ? p.h.dtype : DType::kF32;
  p.options = logit_options(checks, args.logits, args.h.size(0), columns);
  p.status = checks.status(args.status, "[Tv]", p.options.num_rows);
  return p;
}

// Where the second pass of rows whose filter keeps many ids writes their logits.
inline Tensor fallback_memory(const Checks& checks, const Tensor& h,
                              const OptionalTensor& workspace, int64_t max_fallback_rows,
                              int64_t num_columns, bool may_fall_back) {
  checks.at_least<int64_t>("max_fallback_rows", max_fallback_rows, 1);
  const int64_t bytes = fallback_bytes(max_fallback_rows, num_columns);
  if (!workspace) return new_tensor(h, {may_fall_back ? bytes : 0}, ScalarType::Byte);
  checks.tensor("workspace", *workspace, {ScalarType::Byte}, "[bytes]", {-1});
  checks.at_least("len(workspace)", workspace->size(0), bytes);
  checks.last_contiguous("workspace", *workspace);
  return *workspace;
}

// Tv, before anything was checked: what the outputs are made for.
inline int64_t head_rows(const Tensor& h, const OptionalTensor& verify_rows) {
  return verify_rows ? verify_rows->numel() : h.dim() > 0 ? h.size(0) : 0;
}

}  // namespace dflash
