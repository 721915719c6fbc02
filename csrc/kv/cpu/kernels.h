// CPU kernels of the kv ops: torch-free, over a range of tasks; threads belong to *_op.cpp.
#pragma once

#include "kv/params.h"

namespace dflash {

// Lanes begin .. end of kNumRowLanes; see params.h.
void rope_append_kv_cpu(const RopeAppendKvParams& p, int64_t begin, int64_t end);

// Items begin .. end of num_layers * num_requests, request by request within a layer.
void compact_kv_cpu(const CompactKvParams& p, int64_t begin, int64_t end);

void release_pages_cpu(const ReleasePagesParams& p);  // one task: the list has an order

// Items begin .. end of num_layers * num_requests, request by request within a layer.
void commit_state_cpu(const CommitStateParams& p, int64_t begin, int64_t end);

}  // namespace dflash
