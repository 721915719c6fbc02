// CPU kernels of the drafter ops: torch-free; threads belong to *_op.cpp.
#pragma once

#include "drafter/params.h"

namespace dflash {

// First zeros for rows begin .. end, which blocks overwrite; then blocks begin .. end.
void block_conv_fill_cpu(const BlockConvParams& p, int64_t begin, int64_t end);
void block_conv_cpu(const BlockConvParams& p, int64_t begin, int64_t end);

void select_path_cpu(const SelectPathParams& p, int64_t begin, int64_t end);  // requests

}  // namespace dflash
