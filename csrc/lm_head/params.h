// What every backend of the lm_head ops receives: no torch, no CUDA.
#pragma once

#include "gemm/params.h"
#include "sample/ids.h"

namespace dflash {

// Hidden rows and the head that makes logits of them.
struct HeadParams {
  ArrayView<2> h;            // [num_source_rows, H]
  ArrayView<1> norm_weight;  // [H]?        rows are RMS-normed first
  float eps;
  GemmWeight weight;  // [V_local, H]
  ArrayView<1> bias;  // [V_local]?
  DType round_to;     // logits are rounded to this before anything else; fp32: not
  LogitOptions options;
  StatusView status;  // [Tv]?
};

// Some ids are elsewhere, so nobody here knows what a filter keeps.
static constexpr bool is_shard(const LogitOptions& o) {
  const IdRange ids = id_range(o);
  return ids.first > 0 || ids.last < o.vocab_size;
}

// The temperature of row i alone: 1 without requests or temperatures.
static constexpr RowLaw temperature_law(const SamplingOptions& o, int64_t i, int64_t num_rows) {
  RowLaw law{.is_padded = false,
             .is_greedy = false,
             .inv_temperature = 1.0f,
             .filter = {},
             .noise = {},
             .status = 0};
  if (!o.cu_verify) return law;
  const int64_t request = request_of_row(o, i, num_rows);
  const int64_t row = request < 0 ? -1 : o.requests[request];
  if (row < 0) {
    law.is_padded = true;
    law.status = request >= 0 && o.requests.is_bad(request) ? kOutOfRange : 0;
    return law;
  }
  const float temperature = o.temperature ? *o.temperature.at<float>(row) : 1.0f;
  law.is_greedy = !(temperature >= kGreedyBelow);
  law.inv_temperature = inverse_temperature(temperature);
  return law;
}

// Its log-sum-exp is another sum than that at temperature 1.
static constexpr bool has_own_temperature(const RowLaw& law) {
  return !law.is_greedy && law.inv_temperature != 1.0f;
}

// The law of row i with the noise that draws the residual after it.
static constexpr RowLaw residual_law(const SamplingOptions& o, int64_t i, int64_t num_rows,
                                     int64_t vocab_size) {
  RowLaw law = row_law(o, i, num_rows, vocab_size);
  if (law.is_padded || law.is_greedy) return law;
  const int64_t first = o.cu_verify[request_of_row(o, i, num_rows)];
  law.noise = cycle_noise(kResidualStream, static_cast<int64_t>(law.noise.seed), o.positions[i] + 1,
                          o.positions[first], i - first);
  return law;
}

struct LmHeadTopkParams {
  HeadParams head;
  int64_t k;
  ArrayOut<2> values;  // [Tv, k]  fp32
  IndexOut ids;        // [Tv, k]
  ArrayOut<1> lse;     // [Tv]     fp32
};

struct LmHeadSampleParams {
  HeadParams head;
  SamplingOptions sampling;
  int64_t max_fallback_rows;
  float* workspace;      // [max_fallback_rows, fallback_stride(V_local)]
  IndexOut ids;          // [Tv]
  ArrayOut<1> logprobs;  // [Tv]  fp32
};

struct LmHeadGatherParams {
  HeadParams head;
  IndexTable ids;            // [Tv, K]   -1: none
  SamplingOptions sampling;  // of it cu_verify, requests and temperature
  ArrayOut<2> logprobs;      // [Tv, K]   fp32
  ArrayOut<2> tempered;      // [Tv, K]   fp32
  IndexOut ranks;            // [Tv, K]
  ArrayOut<1> lse;           // [Tv]      fp32
};

struct LmHeadVerifyParams {
  HeadParams head;
  IndexTable ids;  // [Tv, K]   -1: none
  SamplingOptions sampling;
  int64_t max_fallback_rows;
  float* workspace;          // [max_fallback_rows, fallback_stride(V_local)]
  ArrayOut<2> values;        // [Tv, K]   fp32
  ArrayOut<1> lse;           // [Tv]      fp32
  ArrayOut<1> tempered_lse;  // [Tv]      fp32
  IndexOut rest_ids;         // [Tv]
  ArrayOut<1> rest_values;   // [Tv]      fp32
  ArrayOut<1> rest_keys;     // [Tv]      fp32
  ArrayOut<2> top_values;    // [Tv, 64]  fp32
  IndexOut top_ids;          // [Tv, 64]
  bool* covered;             // [Tv]
  int64_t covered_stride;
};

// An index tensor of three dimensions.
struct ShardIds {
  const void* data;
  int64_t strides[3];
  bool is_int64;

  constexpr int64_t operator()(int64_t shard, int64_t row, int64_t k) const {
    const int64_t i = shard * strides[0] + row * strides[1] + k * strides[2];
    return is_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

struct MergeShardsParams {
  ArrayView<3> keys;    // [S, Tv, K]   fp32
  ShardIds ids;         // [S, Tv, K]   -1: absent
  ArrayView<3> values;  // [S, Tv, K]?  fp32, what comes along
  bool has_values;
  ArrayView<2> lse;    // [S, Tv]      fp32
  int64_t num_shards;  // S
  int64_t num_rows;    // Tv
  int64_t count;       // K
  StatusView status;   // [Tv]?

  ArrayOut<2> out_keys;    // [Tv, K]   fp32
  IndexOut out_ids;        // [Tv, K]
  ArrayOut<2> out_values;  // [Tv, K]   fp32; [Tv, 0] without values
  ArrayOut<1> out_lse;     // [Tv]      fp32
};

}  // namespace dflash
