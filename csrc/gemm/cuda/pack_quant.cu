// pack_w8, pack_w4, unpack with a format: quantised weights of several makes into the order in
// which the kernels read them, and packed ones to numbers.
//
//   grid   enough CTAs of 256 threads; a thread moves one word, scale or number at a time
//   reads  codes, scales and zeros once, with whatever runs their maker gave them
//
// Reference: python/dflash_ops/reference/quantised.py

#include "common/dispatch.h"
#include "gemm/cuda/launch.h"
#include "gemm/cuda/plan.h"
#include "gemm/cuda/quant_layout.h"
#include "gemm/quant_source.h"

namespace dflash {
namespace {

// Number i of a block's words of codes, in the order in which they stand.
template <class Source>
__device__ uint32_t word_of_block(const QuantLayout& layout, const Source& source, int64_t block,
                                  int64_t i) {
  const int64_t tile_words = kTileRows * layout.row_words;
  const int64_t tile = 2 * block + i / tile_words, in_tile = i % tile_words;
  const int64_t chunk = in_tile / (kTileRows * QuantLayout::kChunkWords);
  const int in_chunk = static_cast<int>(in_tile - chunk * kTileRows * QuantLayout::kChunkWords);
  const int num_words = layout.words_in(chunk);
  const int64_t row = layout.row_at(tile, in_chunk / num_words);
  const int place = in_chunk % num_words;
  const int in_row = num_words < QuantLayout::kChunkWords ? place : layout.word_at(place);
  const int64_t first = chunk * layout.chunk_depth() + int64_t{in_row} * layout.per_word();
  uint32_t word = 0;
  for (int64_t k = first; k < first + layout.per_word(); ++k) {
    const bool is_there = row >= 0 && k < layout.depth;
    word |= (is_there ? source.code(row, k) : layout.quant.zero_code()) << layout.shift(k);
  }
  return word;
}

// Number i of a block's scales, zeros or mins: lines of 32.
template <class Source>
__device__ uint32_t scale_of_block(const QuantLayout& layout, const Source& source, int64_t block,
                                   int64_t i) {
  constexpr int kLanes = QuantFormat::kLanes;
  const int lines = layout.quant.offset == Offset::kNone ? 1 : 2,
            lane = static_cast<int>(i % kLanes);
  const int64_t row = layout.row_at(2 * block + lane / kTileRows, lane % kTileRows);
  const int64_t group = i / kLanes / lines;
  if (row < 0) return 0;
  return i / kLanes % lines == 0 ? source.scale(row, group) : source.term(row, group);
}

__global__ void pack_quant_kernel(const __grid_constant__ PackQuantParams p) {
  const QuantLayout layout(p.to);
  const int64_t code_bytes = layout.quant.code_bytes(layout.depth), num_words = code_bytes / 4;
  const bool is_wide = layout.quant.scale_dtype == DType::kF32;
  const int64_t per_block = num_words + (layout.block_bytes - code_bytes) / (is_wide ? 4 : 2);
  with_source(p, [&](const auto& source) {
    for (int64_t i = blockIdx.x * int64_t{kPackThreads} + threadIdx.x;
         i < p.to.num_blocks() * per_block; i += int64_t{kPackThreads} * gridDim.x) {
      const int64_t block = i / per_block, in_block = i % per_block, scale = in_block - num_words;
      char* to = static_cast<char*>(p.packed) + block * layout.block_bytes;
      if (scale < 0) {
        reinterpret_cast<uint32_t*>(to)[in_block] = word_of_block(layout, source, block, in_block);
        continue;
      }
      const uint32_t bits = scale_of_block(layout, source, block, scale);
      if (is_wide) {
        reinterpret_cast<uint32_t*>(to + code_bytes)[scale] = bits;
      } else {
        reinterpret_cast<uint16_t*>(to + code_bytes)[scale] = static_cast<uint16_t>(bits);
      }
    }
  });
}

__global__ void unpack_codes_kernel(const __grid_constant__ UnpackParams p) {
  const QuantLayout layout(p.packed);
  const QuantFormat& quant = layout.quant;
  const char* data = static_cast<const char*>(p.packed.data);
  for (int64_t i = blockIdx.x * int64_t{kPackThreads} + threadIdx.x;
       i < layout.num_rows * layout.depth; i += int64_t{kPackThreads} * gridDim.x) {
    const int64_t row = i / layout.depth, k = i % layout.depth;
    const auto [tile, in_tile] = layout.place_of_row(row);
    const int64_t chunk = k / layout.chunk_depth();
    const int num_words = layout.words_in(chunk);
    const int word = static_cast<int>(k % layout.chunk_depth()) / layout.per_word();
    const int place = num_words < QuantLayout::kChunkWords ? word : layout.place_of(word);
    const int64_t before =
        chunk * kTileRows * QuantLayout::kChunkWords + in_tile * num_words + place;
    const auto* words = reinterpret_cast<const uint32_t*>(data + layout.codes_of_tile(tile));
    const uint32_t code = words[before] >> layout.shift(k) & ((1u << quant.bits()) - 1);
    const char* scales = data + layout.scale_of_row(tile, in_tile, k / quant.group);
    float scale = 0.0f, term = 0.0f;
    (void)with_dtype<float, BF16, F16>(quant.scale_dtype, [&]<class T>(std::type_identity<T>) {
      scale = to_float(*reinterpret_cast<const T*>(scales));
      if (quant.offset == Offset::kNone) return;
      term = to_float(*reinterpret_cast<const T*>(scales + quant.line_bytes()));
    });
    p.out.at<float>(row)[k * p.out.strides[1]] =
        quant_value(quant.offset, code_value(quant.codes, code), scale, term);
  }
}

}  // namespace

cudaError_t launch_pack_quant(const PackQuantParams& p, cudaStream_t stream) {
  const int64_t bytes = p.to.num_blocks() * p.to.block_bytes();
  if (bytes == 0) return cudaSuccess;  // a grid of 0 CTAs is a launch error
  pack_quant_kernel<<<pack_ctas(bytes / 4), kPackThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch_unpack_quant(const UnpackParams& p, cudaStream_t stream) {
  const int64_t count = p.packed.num_rows * p.packed.depth;
  if (count == 0) return cudaSuccess;
  unpack_codes_kernel<<<pack_ctas(count), kPackThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace dflash
