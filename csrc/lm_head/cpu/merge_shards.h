// CPU kernel of merge_shards: torch-free, over rows begin .. end.
#pragma once

#include "lm_head/params.h"

namespace dflash {

void merge_shards_cpu(const MergeShardsParams& p, int64_t begin, int64_t end);

}  // namespace dflash
