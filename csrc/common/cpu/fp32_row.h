// Loops over a row of numbers that is worked on in fp32, for the instruction set in use: what ops
// that pass over rows share. Every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "common/cpu/isa.h"
#include "common/dtype.h"

namespace dflash {

// Float types: fp32, bf16, fp16. `from` is contiguous.
struct RowKernels {
  void (*load)(const void* from, DType dtype, int64_t count, float* row);
  void (*add)(const void* from, DType dtype, int64_t count, float* row);
  // Rounds to a float type and back.
  void (*round)(DType dtype, int64_t count, float* row);
  void (*store)(const float* row, int64_t count, DType dtype, void* to, int64_t stride);

  // RMSNorm, rounded to a float type and back.
  void (*norm)(const float* weight, float eps, DType dtype, int64_t count, float* row);
  // Turns num_pairs pairs by their angles, whose cosines come first and then the sines.
  void (*rotate)(const float* cos_sin, int64_t num_pairs, bool is_neox, float* row);

  // Of the finite numbers.
  float (*largest_magnitude)(const float* row, int64_t count);
  // As a quantised type: fp8 or int8.
  void (*quantise)(const float* row, int64_t count, float scale, DType dtype, void* to);
};

const RowKernels& row_kernels();  // for the instruction set in use

// Per instruction set; row_kernels() names only those of this architecture.
extern const RowKernels kRowPortable, kRowAvx2, kRowAvx512;

}  // namespace dflash
