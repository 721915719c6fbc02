// CPU kernels of the sample ops: torch-free, over a range of rows; threads belong to *_op.cpp.
#pragma once

#include "sample/params.h"

namespace dflash {

void sample_logits_cpu(const SampleLogitsParams& p, int64_t begin, int64_t end);
void sample_candidates_cpu(const SampleCandidatesParams& p, int64_t begin, int64_t end);

}  // namespace dflash
