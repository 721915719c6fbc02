// Host arithmetic of the drafter ops.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dflash {

// CPU: items per task when each takes this many multiply-adds. To wake a thread costs more than
// 2^15 of them.
constexpr int64_t drafter_grain(int64_t macs_per_item) {
  constexpr int64_t kMacsPerTask = 1 << 15;
  return std::max<int64_t>(1, kMacsPerTask / std::max<int64_t>(1, macs_per_item));
}

// CUDA: block_conv's threads have 8 channels of a row each, and one CTA per row and per block of
// rows, whose range it reports; select_path has one warp per request.
inline constexpr int kConvBlock = 128;
inline constexpr int kPathsPerCta = 2;

constexpr int64_t conv_channel_ctas(int64_t num_channels) {
  return (num_channels + 8 * kConvBlock - 1) / (8 * kConvBlock);
}

constexpr int64_t path_ctas(int64_t num_requests) {
  return (num_requests + kPathsPerCta - 1) / kPathsPerCta;
}

}  // namespace dflash
