// merge_states, torch side: checks and outputs, the same for every backend. A backend is a function
// void run(const MergeStatesParams&, int32_t device_idx).
#pragma once

#include <tuple>

#include "attention/params.h"
#include "common/check.h"
#include "common/tensor.h"

namespace dflash {

template <auto kRun>
void merge_states_out(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                      const Tensor& lse_b, const OptionalTensor& sinks, const Tensor& out,
                      const Tensor& lse) {
  const Checks checks{"merge_states", out_a};
  const ScalarType dtype = out_a.scalar_type();
  MergeStatesParams p{};
  p.out_a = checks.array<3>("out_a", out_a, kFloats, "[T, Hq, Dv]", {-1, -1, -1});
  p.num_rows = out_a.size(0);
  p.num_heads = out_a.size(1);
  p.v_dim = out_a.size(2);
  const auto shape = {p.num_rows, p.num_heads, p.v_dim};
  const auto pairs = {p.num_rows, p.num_heads};
  p.lse_a = checks.array<2>("lse_a", lse_a, {ScalarType::Float}, "[T, Hq]", pairs);
  p.out_b = checks.array<3>("out_b", out_b, {dtype}, "[T, Hq, Dv]", shape);
  p.lse_b = checks.array<2>("lse_b", lse_b, {ScalarType::Float}, "[T, Hq]", pairs);
  p.sinks = checks.array<1>("sinks", sinks, kFloats, "[Hq]", {p.num_heads});
  p.out = checks.array_out<3>("out", out, {dtype}, "[T, Hq, Dv]", shape);
  p.lse = checks.array_out<2>("lse", lse, {ScalarType::Float}, "[T, Hq]", pairs);
  kRun(p, out_a.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor> merge_states(const Tensor& out_a, const Tensor& lse_a,
                                        const Tensor& out_b, const Tensor& lse_b,
                                        const OptionalTensor& sinks) {
  std::tuple outs{new_tensor(out_a, out_a.sizes(), out_a.scalar_type()),
                  new_tensor(out_a, lse_a.sizes(), ScalarType::Float)};
  merge_states_out<kRun>(out_a, lse_a, out_b, lse_b, sinks, std::get<0>(outs), std::get<1>(outs));
  return outs;
}

}  // namespace dflash
