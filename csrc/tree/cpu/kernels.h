// CPU kernels of the tree ops: torch-free; threads belong to *_op.cpp.
#pragma once

#include "tree/params.h"

namespace dflash {

// First what rows outside every request hold, for rows begin .. end; then requests begin .. end.
void tree_metadata_fill_cpu(const TreeMetadataParams& p, int64_t begin, int64_t end);
void tree_metadata_cpu(const TreeMetadataParams& p, int64_t begin, int64_t end);

}  // namespace dflash
