// The kernels that the lm_head ops share.
#pragma once

#include <cuda_runtime_api.h>

#include "lm_head/cuda/head.h"

namespace dflash {

// A call whose workspace is laid out. What an op has of its own is still to be filled in.
inline HeadLaunch head_launch(HeadOp op, const HeadParams& head, void* workspace,
                              int64_t num_ids = 0) {
  HeadLaunch c{};
  c.op = op;
  c.head = head;
  c.plan = plan_head(head, num_ids);
  char* bytes = static_cast<char*>(workspace);
  c.x = bytes;
  c.nodes = reinterpret_cast<TileNodes*>(bytes + c.plan.nodes_offset);
  c.bests = reinterpret_cast<StoredBest*>(bytes + c.plan.bests_offset);
  c.keys = reinterpret_cast<uint64_t*>(bytes + c.plan.keys_offset);
  c.given_keys = reinterpret_cast<uint64_t*>(bytes + c.plan.given_offset);
  c.flags = reinterpret_cast<int32_t*>(bytes + c.plan.flags_offset);
  c.rows = reinterpret_cast<HeadRow*>(bytes + c.plan.rows_offset);
  return c;
}

// Works the rows out: what each wants, and its x, normed if asked for.
cudaError_t launch_head_rows(const HeadLaunch& c, cudaStream_t stream);

// One pass over the head.
cudaError_t launch_head_scan(const HeadLaunch& c, cudaStream_t stream);

// What of a draw is a result; what is absent is not.
struct DrawOut {
  IndexOut ids;          // [Tv]
  ArrayOut<1> logprobs;  // [Tv]?
  ArrayOut<1> values;    // [Tv]?
  ArrayOut<1> scores;    // [Tv]?
};

// The draws of flagged rows. workspace: [max_fallback_rows, fallback_stride(V_local)].
cudaError_t launch_head_fallback(HeadLaunch c, int64_t max_fallback_rows, float* workspace,
                                 const DrawOut& out, cudaStream_t stream);

}  // namespace dflash
