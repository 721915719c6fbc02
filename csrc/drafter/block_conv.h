// block_conv, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const BlockConvParams&, int32_t device_idx).
#pragma once

#include <optional>

#include "common/check.h"
#include "common/tensor.h"
#include "drafter/params.h"

namespace dflash {

template <auto kRun>
void block_conv_out(const Tensor& x, const Tensor& delta, const Tensor& base,
                    const OptionalTensor& cu_rows, std::optional<int64_t> block_size,
                    const OptionalTensor& residual, std::optional<ScalarType> out_dtype,
                    const OptionalTensor& status, const Tensor& out) {
  const Checks checks{"block_conv", x};
  BlockConvParams p{};
  p.x = checks.array<2>("x", x, kFloats, "[T, H]", {-1, -1});
  p.num_rows = x.size(0);
  p.num_channels = x.size(1);
  p.delta = checks.array<3>("delta", delta, kFloats, "[T, taps, G]", {p.num_rows, -1, -1});
  p.num_taps = delta.size(1);
  p.num_groups = delta.size(2);
  if (p.num_groups == 0 ? p.num_channels != 0 : p.num_channels % p.num_groups != 0) {
    checks.fail("G must divide H = ", p.num_channels, ", got ", p.num_groups);
  }
  p.base = checks.array<2>("base", base, kFloats, "[taps, H]", {p.num_taps, p.num_channels});
  p.residual =
      checks.array<2>("residual", residual, kFloats, "[T, H]", {p.num_rows, p.num_channels});
  checks.last_contiguous("x", x);
  checks.last_contiguous("base", base);
  if (residual) checks.last_contiguous("residual", *residual);
  if (cu_rows.has_value() == block_size.has_value()) {
    checks.fail("one of cu_rows and block_size must be given, got ", cu_rows ? "both" : "neither");
  }
  if (cu_rows) {
    p.cu_rows = checks.index("cu_rows", cu_rows, "[B + 1]", -1);
    checks.at_least<int64_t>("len(cu_rows)", cu_rows->size(0), 1);
    p.num_blocks = cu_rows->size(0) - 1;
  } else {
    checks.at_least<int64_t>("block_size", *block_size, 1);
    p.block_size = *block_size;
    p.num_blocks = (p.num_rows + p.block_size - 1) / p.block_size;
  }
  p.status = checks.status(status, "[B]", p.num_blocks);
  const ScalarType dtype = out_dtype.value_or(x.scalar_type());
  p.out = checks.array_out<2>("out", out, {dtype}, "[T, H]", {p.num_rows, p.num_channels});
  kRun(p, x.get_device_index());
}

template <auto kRun>
Tensor block_conv(const Tensor& x, const Tensor& delta, const Tensor& base,
                  const OptionalTensor& cu_rows, std::optional<int64_t> block_size,
                  const OptionalTensor& residual, std::optional<ScalarType> out_dtype,
                  const OptionalTensor& status) {
  const ScalarType dtype = out_dtype.value_or(x.scalar_type());
  if (std::ranges::find(kFloats, dtype) == kFloats.end()) {
    Checks{"block_conv", x}.fail("out_dtype must be bfloat16 or float16 or float32, got ",
                                 dtype_name(dtype));
  }
  Tensor out = new_tensor(x, x.sizes(), dtype);
  block_conv_out<kRun>(x, delta, base, cu_rows, block_size, residual, out_dtype, status, out);
  return out;
}

}  // namespace dflash
