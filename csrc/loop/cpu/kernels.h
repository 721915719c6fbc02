// CPU kernels of the loop ops: torch-free, over a range of requests; threads belong to *_op.cpp.
#pragma once

#include "loop/params.h"

namespace dflash {

void commit_cpu(const CommitParams& p, int64_t begin, int64_t end);
void prepare_block_cpu(const PrepareBlockParams& p, int64_t begin, int64_t end);

}  // namespace dflash
