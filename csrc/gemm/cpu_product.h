// A product on a CPU, on torch's threads: x packed once, then every (block, rows) tile handed to an
// epilogue. For the ops of every family:
//
//   const PackedX x(view, norm_weight, eps, num_rows, weight.row_form(), row_of);
//   for_each_tile(weight, x, num_rows, epilogue);
//
// epilogue(block, first_row, count, sums) finds the product of row first_row + r and the output at
// lane j of the block (GemmWeight::row_at) in sums[r * 32 + j], and may overwrite it.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>

#include "gemm/cpu/kernels.h"
#include "gemm/plan.h"

namespace dflash {

// Packed copies of rows of x, one for each row of the product; see GemmKernels::pack_row.
struct PackedX {
  std::unique_ptr<char[]> memory;
  PackedRows rows;

  // Row i of the product is row row_of(i) of x; -1: zeros.
  template <class RowOf = std::identity>
  PackedX(const ArrayView<2>& x, const ArrayView<1>& norm_weight, float eps, int64_t num_rows,
          const RowForm& form, const RowOf& row_of = {}) {
    const GemmKernels& kernels = gemm_kernels();
    constexpr int64_t kLine = 64;
    rows.row_bytes = kernels.row_bytes(x.dtype, form);
    memory = std::make_unique_for_overwrite<char[]>(num_rows * rows.row_bytes + kLine);
    const auto address = reinterpret_cast<uintptr_t>(memory.get());
    char* first = memory.get() + (kLine - address % kLine) % kLine;
    rows.data = first;
    const int64_t grain = row_grain(form.depth);
    torch::stable::parallel_for(0, num_rows, grain, [&](int64_t begin, int64_t end) {
      const int64_t bytes = float_bytes(x.dtype);
      for (int64_t i = begin; i < end; ++i) {
        char* to = first + i * rows.row_bytes;
        const int64_t row = row_of(i);
        if (row < 0) {
          std::memset(to, 0, rows.row_bytes);
        } else {
          const char* from = static_cast<const char*>(x.data) + row * x.strides[0] * bytes;
          kernels.pack_row(from, x.dtype, form, norm_weight, eps, to);
        }
      }
    });
  }
};

// Calls the epilogue once for each block and up to 64 rows, from several threads. A thread takes
// blocks in ascending order; the sums are the same whichever takes them.
template <class Epilogue>
void for_each_tile(const GemmWeight& weight, const PackedX& x, int64_t num_rows,
                   const Epilogue& epilogue) {
  const GemmKernels& kernels = gemm_kernels();
  const int64_t num_blocks = weight.num_blocks();
  const int64_t num_tasks = gemm_tasks(weight, num_rows, torch::stable::get_num_threads());
  const int64_t at_once = blocks_at_once(weight.block_bytes());
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kGemmMaxRows * GemmWeight::kBlock];
    for (int64_t row = 0; row < num_rows; row += kGemmMaxRows) {
      const int64_t count = std::min(kGemmMaxRows, num_rows - row);
      for (int64_t block = begin; block < end; ++block) {
        kernels.block_sums(weight, block, x.rows, row, count, sums);
        epilogue(block, row, count, sums);
      }
    }
  };
  torch::stable::parallel_for(0, num_tasks, 1, [&](int64_t, int64_t) {
    // A task that comes late finds less: nobody waits for a thread whose core is busy.
    for (int64_t first = next.load(); first < num_blocks;) {
      const int64_t last = first + next_blocks(num_blocks - first, num_tasks);
      if (!next.compare_exchange_weak(first, last)) continue;
      for (int64_t b = first; b < last; b += at_once) work(b, std::min(b + at_once, last));
      first = next.load();
    }
  });
}

}  // namespace dflash
