// context_kv on a CPU: the rows that are stored, together, through the steps of verify_gemm,
// rmsnorm and rope_append_kv, with their bits.
//
// Reference: python/dflash_ops/reference/kv.py

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "gemm/cpu_product.h"
#include "kv/context_kv.h"
#include "kv/context_layer.h"
#include "kv/cpu/kernels.h"
#include "kv/plan.h"

namespace dflash {
namespace {

// A matrix of one of the float types.
struct Matrix {
  std::vector<char> memory;
  DType dtype;
  int64_t num_cols;

  Matrix(int64_t num_rows, int64_t num_cols, DType dtype)
      : memory(num_rows * num_cols * float_bytes(dtype)), dtype(dtype), num_cols(num_cols) {}

  ArrayView<2> view() { return {memory.data(), dtype, {num_cols, 1}}; }
  ArrayView<3> heads(int64_t first_col, int64_t head_dim) {
    return {memory.data() + first_col * float_bytes(dtype), dtype, {num_cols, head_dim, 1}};
  }
};

Matrix product(const GemmWeight& weight, const PackedX& x, int64_t num_rows, DType dtype) {
  Matrix out(num_rows, weight.num_rows, dtype);
  VerifyGemmParams p{};
  p.weight = weight;
  p.out = {out.memory.data(), dtype, {out.num_cols, 1}};
  p.num_rows = num_rows;
  p.num_outputs = weight.num_rows;
  for_each_tile(weight, x, num_rows,
                [&](int64_t block, int64_t first_row, int64_t count, float* sums) {
                  gemm_kernels().finish(p, block, first_row, count, sums);
                });
  return out;
}

// The rows that are stored in some group.
std::vector<int64_t> stored_rows(const ContextKvParams& p) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < p.num_rows; ++row) {
    if (is_stored(p, row)) rows.push_back(row);
  }
  return rows;
}

void append_layer(const ContextKvParams& p, const ContextKvLayer& layer, Matrix& kv,
                  int64_t first_col, const std::vector<int64_t>& rows,
                  std::vector<int32_t>& status) {
  std::vector<int64_t> positions, slots;
  for (const int64_t row : rows) {
    positions.push_back(p.positions[row]);
    slots.push_back(p.slots(layer.group, row));
  }
  RopeAppendKvParams a = layer_append(p, layer, kv, first_col, static_cast<int64_t>(rows.size()));
  a.positions = {positions.data(), 1, true};
  a.slots = {slots.data(), 1, true};
  a.status = {status.data(), 1};
  torch::stable::parallel_for(
      0, kNumRowLanes, elements_grain(a.num_rows * layer.weight.num_rows / kNumRowLanes),
      [&](int64_t begin, int64_t end) { rope_append_kv_cpu(a, begin, end); });
}

void run_cpu(const ContextKvParams& p, const Tensor&) {
  const std::vector<int64_t> rows = stored_rows(p);
  const auto num_rows = static_cast<int64_t>(rows.size());
  const DType dtype = p.features.dtype;
  const PackedX features(p.features, {}, 0.0f, num_rows, {p.fc.depth},
                         [&](int64_t i) { return rows[i]; });
  Matrix hidden = product(p.fc, features, num_rows, dtype);
  const PackedX context(hidden.view(), p.hidden_norm, p.eps, num_rows, {p.fc.num_rows});

  std::vector<int32_t> status(num_rows);
  for_each_stack(p, [&](const ContextStack& stack) {
    Matrix kv = product(stack.weight, context, num_rows, dtype);
    int64_t first_col = 0;
    for (int64_t i = 0; i < stack.num_layers; ++i) {
      append_layer(p, stack.layers[i], kv, first_col, rows, status);
      first_col += stack.layers[i].weight.num_rows;
    }
  });
  for (int64_t i = 0; i < num_rows; ++i) p.status.add(rows[i], status[i]);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) { m.impl("context_kv", TORCH_BOX(&context_kv<run_cpu>)); }

}  // namespace dflash
