// CPU kernels of the attention ops: torch-free; memory and threads belong to *_op.cpp.
#pragma once

#include "attention/cpu/block_ops.h"
#include "attention/cpu/plan.h"
#include "attention/params.h"

namespace dflash {

// The block arithmetic of the instruction set in use.
const BlockOps& block_ops();

// Floats that one worker needs as scratch, and that one item leaves as its result.
struct AttentionSizes {
  int64_t out_dim;  // Dv, padded to kLaneMultiple
  int64_t scratch;
  int64_t result;  // a SoftmaxState of the largest tile
};
AttentionSizes attention_sizes(const TreeAttentionParams& p, const AttentionPlan& plan);

// One item: a KV head and a run of leaves of one tile. A tile of one run is written to the outputs;
// others leave their state in `results` [num_items, sizes.result]. Returns status bits.
int32_t tree_attention_item(const TreeAttentionParams& p, const AttentionPlan& plan,
                            const BlockOps& ops, int64_t item, float* scratch, float* results);

// The outputs of tile `tile_idx`, if it has several runs.
void tree_attention_merge(const TreeAttentionParams& p, const AttentionPlan& plan,
                          const BlockOps& ops, int64_t tile_idx, int64_t kv_head, float* results);

// 0 and -inf for the rows that belong to no request.
void tree_attention_fill(const TreeAttentionParams& p, const AttentionPlan& plan);

// Logit of a head's sink; -inf without sinks.
float sink_of(const ArrayView<1>& sinks, int64_t head);

}  // namespace dflash
