// What the kernels of an lm_head op are told, and what they tell each other of a row.
#pragma once

#include "lm_head/cuda/plan.h"
#include "lm_head/params.h"

namespace dflash {

enum class HeadOp : int32_t {
  kTopk,
  kSample,
  kGather,
  kVerify,
  kStore,  // the second pass of kSample and kVerify: writes logits down
};

// What a row collects on its way over the head.
enum class Pick : int32_t {
  kLargest,
  kNoisy,  // the best score
  kTop,    // the 64 best keys
  kRanks,  // how many ids are better than each given one
};

// A row of the call, worked out once.
struct HeadRow {
  RowSource source;
  RowLaw law;
  Pick pick;
  bool has_tempered;  // wants the log-sum-exp at its own temperature, which is another sum

  constexpr bool is_padded() const { return source.row < 0 || law.is_padded; }
  constexpr int32_t status() const { return source.status | law.status; }
};
static_assert(sizeof(HeadRow) <= kHeadRowBytes);

// Rows whose logits are written down: of those with a flag num_slots from first_slot on.
struct StoredRows {
  int64_t first_slot;
  int64_t num_slots;
  float* logits;  // [num_slots, stride]
  int64_t stride;
};

struct TileNodes;
struct StoredBest;

struct HeadLaunch {
  HeadOp op;
  HeadParams head;
  SamplingOptions sampling;
  int64_t k;           // of kTopk
  IndexTable ids;      // [Tv, K]   of kGather and kVerify; -1: none
  ArrayOut<2> values;  // [Tv, K]   of kVerify
  HeadPlan plan;
  void* x;               // [Tv, x_pitch]  rows in order, normed; for a quantised head its parts
  HeadRow* rows;         // [Tv]
  TileNodes* nodes;      // [Tv, num_tiles]
  StoredBest* bests;     // [Tv, num_groups]
  uint64_t* keys;        // [Tv, num_groups, 64]
  uint64_t* given_keys;  // [Tv, K]   of kGather; 0: no finite logit here
  int32_t* flags;        // [Tv]      the 64 best do not tell the draw
  StoredRows stored;
};

constexpr HeadRow head_row(const HeadLaunch& c, int64_t i) {
  const LogitOptions& o = c.head.options;
  HeadRow row{.source = row_source(o, i),
              .law = {.is_padded = false,
                      .is_greedy = false,
                      .inv_temperature = 1.0f,
                      .filter = {},
                      .noise = {},
                      .status = 0},
              .pick = Pick::kTop,
              .has_tempered = false};
  if (c.op == HeadOp::kTopk) {
    row.pick = c.k == 1 ? Pick::kLargest : Pick::kTop;
    return row;
  }
  if (c.op == HeadOp::kGather) {
    row.law = temperature_law(c.sampling, i, o.num_rows);
    row.pick = Pick::kRanks;
    row.has_tempered = has_own_temperature(row.law);
    return row;
  }
  const bool is_verify = c.op == HeadOp::kVerify;
  row.law = is_verify ? residual_law(c.sampling, i, o.num_rows, o.vocab_size)
                      : row_law(c.sampling, i, o.num_rows, o.vocab_size);
  row.pick = row.law.is_greedy ? Pick::kLargest : row.law.is_filtered() ? Pick::kTop : Pick::kNoisy;
  row.has_tempered = is_verify ? has_own_temperature(row.law) : needs_tempered(row.law);
  return row;
}

}  // namespace dflash
