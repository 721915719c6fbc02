// block_conv: DFlash 2's grouped dynamic depthwise convolution, within each block.
//
// fp32 from the loads on: taps ascending, (base + delta) rounded, then the product, then the sum.
//
// Reference: python/dflash_ops/reference/drafter.py

#include <algorithm>
#include <vector>

#include "common/dispatch.h"
#include "drafter/cpu/kernels.h"
#include "drafter/rounded.h"

namespace dflash {
namespace {

using Row = std::vector<float>;

void load(const ArrayView<2>& view, int64_t row, Row& out) {
  (void)with_dtype<float, BF16, F16>(view.dtype, [&]<class T>(std::type_identity<T>) {
    const T* data = view.at<T>(row);
    for (size_t c = 0; c < out.size(); ++c) out[c] = to_float(data[c]);
  });
}

struct Conv {
  const BlockConvParams& p;
  Row x = Row(p.num_channels);
  Row base = Row(p.num_channels);
  Row sum = Row(p.num_channels);
  Row delta = Row(p.num_groups);

  void load_delta(int64_t row, int64_t tap) {
    (void)with_dtype<float, BF16, F16>(p.delta.dtype, [&]<class T>(std::type_identity<T>) {
      const T* data = p.delta.at<T>(row) + tap * p.delta.strides[1];
      for (int64_t g = 0; g < p.num_groups; ++g) delta[g] = to_float(data[g * p.delta.strides[2]]);
    });
  }

  void write(int64_t row, int64_t first_row) {
    std::ranges::fill(sum, 0.0f);
    const int64_t group_size = p.num_groups > 0 ? p.num_channels / p.num_groups : 0;
    for (int64_t tap = 0; tap < p.num_taps && row - tap >= first_row; ++tap) {
      load(p.x, row - tap, x);
      load(p.base, tap, base);
      load_delta(row, tap);
      for (int64_t g = 0, c = 0; g < p.num_groups; ++g) {
        for (const int64_t end = c + group_size; c < end; ++c) {
          sum[c] += (base[c] + delta[g]) * x[c];
        }
      }
    }
    if (p.residual) {
      load(p.residual, row, x);
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += x[c];
    }
    store(row);
  }

  void store(int64_t row) const {
    (void)with_dtype<float, BF16, F16>(p.out.dtype, [&]<class T>(std::type_identity<T>) {
      T* out = p.out.at<T>(row);
      for (int64_t c = 0; c < p.num_channels; ++c) out[c * p.out.strides[1]] = rounded<T>(sum[c]);
    });
  }
};

}  // namespace

void block_conv_fill_cpu(const BlockConvParams& p, int64_t begin, int64_t end) {
  const Conv zeros{p};
  for (int64_t row = begin; row < end; ++row) zeros.store(row);
}

void block_conv_cpu(const BlockConvParams& p, int64_t begin, int64_t end) {
  Conv conv{p};
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * p.block_size;
    RowRange rows{first, std::min(p.block_size, p.num_rows - first), true};
    if (p.cu_rows) rows = row_range(p.cu_rows, b, p.num_rows);
    if (!rows.in_range) p.status.add(b, kOutOfRange);
    for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
      conv.write(row, rows.first);
    }
  }
}

}  // namespace dflash
