// Quantised weights as arguments: the twin of python/dflash_ops/_quant.py, word for word.
#pragma once

#include <string>
#include <string_view>

#include "gemm/weight.h"

namespace dflash {

// The index of the option that `text` begins with, which is cut off; -1: none.
inline int take_prefix(std::string_view& text, std::initializer_list<std::string_view> options) {
  int i = 0;
  for (const std::string_view option : options) {
    if (text.starts_with(option)) {
      text.remove_prefix(option.size());
      return i;
    }
    ++i;
  }
  return -1;
}

inline QuantFormat quant_format(const Checks& checks, const std::string& format,
                                const char* name = "format") {
  constexpr Codes kCodes[]{Codes::kInt4, Codes::kInt8, Codes::kF8E4M3};
  constexpr DType kScales[]{DType::kF16, DType::kBF16, DType::kF32};
  constexpr int32_t kGroups[]{32, 64, 128, 256, 512};
  std::string_view text = format;
  const int codes = take_prefix(text, {"int4_", "int8_", "fp8_"});
  const int scales = take_prefix(text, {"fp16_", "bf16_", "fp32_"});
  const int group = take_prefix(text, {"g32", "g64", "g128", "g256", "g512"});
  const int offset = take_prefix(text, {"_zeros", "_mins"});
  if (codes < 0 || scales < 0 || group < 0 || !text.empty() || (offset >= 0 && codes != 0) ||
      (offset == 1 && scales != 0)) {
    checks.fail(name, " must be as pack_w8 or pack_w4 names it, like int4_fp16_g32_mins, got ",
                format);
  }
  constexpr Offset kOffsets[]{Offset::kNone, Offset::kZeros, Offset::kMins};
  return {kCodes[codes], kOffsets[offset + 1], kScales[scales], kGroups[group]};
}

// The weight of a product with rows of `depth` elements of `dtype`; see gemm_weight.
inline GemmWeight quant_weight(const Checks& checks, const Tensor& weight, const QuantFormat& quant,
                               ScalarType dtype, int64_t depth, int64_t num_rows, bool is_pair,
                               const char* name = "weight") {
  GemmWeight w{nullptr, dtype_code(dtype), num_rows, depth, 0, true, is_pair, quant};
  const int64_t blocks = num_rows < 0 ? -1 : w.num_blocks();
  checks.tensor(name, weight, {ScalarType::Byte}, "[blocks, block_bytes]",
                {blocks, w.block_bytes()});
  check_contiguous(checks, name, weight);
  if (num_rows < 0) w.num_rows = weight.size(0) * GemmWeight::kBlock;
  check_pair(checks, name, w);
  w.data = weight.const_data_ptr();
  return w;
}

}  // namespace dflash
