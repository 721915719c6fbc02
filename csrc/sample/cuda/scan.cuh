// What the two kernels of sample_logits tell each other, and the first of them the kernels of
// rejection verification.
#pragma once

#include "sample/cuda/plan.h"
#include "sample/cuda/row.cuh"

namespace dflash {

// A tile of kTileIds ids: its nodes of the log-sum-exp tree, and the best candidate of a row
// without a filter.
struct TileResult {
  LseNode raw;
  LseNode tempered;  // at the row's own temperature, if the filter asks for it
  StoredBest best;
};
static_assert(sizeof(TileResult) == kTileResultBytes);

struct SampleLaunch {
  SampleLogitsParams p;
  bool is_law;         // the rows' laws are asked for, not a draw
  int64_t first_tile;  // the one that holds the first id
  int64_t num_tiles;
  TileResult* tiles;  // [Tv, num_tiles]
  uint64_t* keys;     // [Tv, num_tiles, 64]  of rows with a filter: the best, in order; 0: none

  __device__ bool needs_tempered(const RowLaw& law) const {
    const bool is_whole_law = is_law && !law.is_filtered() && law.inv_temperature != 1.0f;
    return is_whole_law || dflash::needs_tempered(law);
  }
};

// workspace: what plan_sample says.
inline SampleLaunch sample_launch(const SampleLogitsParams& p, bool is_law, void* workspace) {
  const LogitOptions& o = p.options;
  const SamplePlan plan = plan_sample(o.num_rows, o.vocab_start, o.num_columns);
  char* bytes = static_cast<char*>(workspace);
  return {p,
          is_law,
          plan.first_tile,
          plan.num_tiles,
          reinterpret_cast<TileResult*>(bytes),
          reinterpret_cast<uint64_t*>(bytes + plan.keys_offset)};
}

struct RowTask {
  RowSource source;
  RowLaw law;

  __device__ bool is_padded() const { return source.row < 0 || law.is_padded; }
};

static __device__ RowTask row_task(const SampleLogitsParams& p, int64_t i) {
  return {row_source(p.options, i),
          row_law(p.sampling, i, p.options.num_rows, p.options.vocab_size)};
}

}  // namespace dflash
