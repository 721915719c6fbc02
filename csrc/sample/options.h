// The arguments that say what a logit is and how a row's token is chosen: checked in one place for
// every op that takes them. The twin of python/dflash_ops/_options.py.
#pragma once

#include <limits>

#include "common/check.h"
#include "sample/params.h"

namespace dflash {

struct LogitArgs {
  const OptionalTensor& verify_rows;
  double logit_scale;
  double softcap;
  int64_t vocab_start;
  std::optional<int64_t> vocab_size;
  const OptionalTensor& token_mask;
  const OptionalTensor& mask_rows;
  const OptionalTensor& adj_cu;
  const OptionalTensor& adj_ids;
  const OptionalTensor& adj_values;
};

inline constexpr int64_t kMaxId = 0xffffffff;  // ids are 32 bits wide where they are ordered

// num_rows: of the input; num_columns: of the vocabulary that is here.
inline LogitOptions logit_options(const Checks& checks, const LogitArgs& args, int64_t num_rows,
                                  int64_t num_columns) {
  LogitOptions o{};
  o.num_source_rows = num_rows;
  o.verify_rows = checks.index("verify_rows", args.verify_rows, "[Tv]", -1);
  o.num_rows = args.verify_rows ? args.verify_rows->size(0) : num_rows;
  o.logit_scale = static_cast<float>(args.logit_scale);
  checks.at_least("softcap", args.softcap, 0.0);
  o.softcap = static_cast<float>(args.softcap);
  checks.at_least<int64_t>("vocab_start", args.vocab_start, 0);
  o.vocab_start = args.vocab_start;
  o.num_columns = num_columns;
  o.vocab_size = args.vocab_size.value_or(args.vocab_start + num_columns);
  checks.at_least<int64_t>("vocab_size", o.vocab_size, 0);
  checks.at_most("vocab_size", o.vocab_size, kMaxId);
  if (args.token_mask) {
    const int64_t words = (o.vocab_size + 31) / 32;
    const int64_t masks = args.mask_rows ? -1 : o.num_rows;
    const char* dims =
        args.mask_rows ? "[num_masks, ceil(vocab_size / 32)]" : "[Tv, ceil(vocab_size / 32)]";
    const Tensor& mask = *args.token_mask;
    checks.tensor("token_mask", mask, {ScalarType::Int}, dims, {masks, words});
    o.token_mask = {mask.const_data_ptr(), mask.strides()[0], mask.strides()[1],
                    mask.size(0),          mask.size(1),      false};
  }
  checks.given("token_mask", args.token_mask.has_value(), "mask_rows", args.mask_rows.has_value());
  o.mask_rows = checks.index("mask_rows", args.mask_rows, "[Tv]", o.num_rows);
  checks.given("adj_ids", args.adj_ids.has_value(), "adj_cu", args.adj_cu.has_value());
  checks.given("adj_values", args.adj_values.has_value(), "adj_cu", args.adj_cu.has_value());
  o.adj_cu = checks.index("adj_cu", args.adj_cu, "[Tv + 1]", o.num_rows + 1);
  o.adj_ids = checks.index("adj_ids", args.adj_ids, "[nnz]", -1);
  o.num_adj = args.adj_ids ? args.adj_ids->size(0) : 0;
  o.adj_values =
      checks.array<1>("adj_values", args.adj_values, {ScalarType::Float}, "[nnz]", {o.num_adj});
  return o;
}

struct SamplingArgs {
  const Tensor& positions;
  const Tensor& cu_verify;
  const OptionalTensor& req_rows;
  const OptionalTensor& temperature;
  const OptionalTensor& top_k;
  const OptionalTensor& top_p;
  const OptionalTensor& min_p;
  const OptionalTensor& seeds;
  const std::string& order;
};

inline SamplingOptions sampling_options(const Checks& checks, const SamplingArgs& args,
                                        int64_t num_rows) {
  SamplingOptions o{};
  o.positions = checks.index("positions", args.positions, "[Tv]", num_rows);
  o.cu_verify = checks.index("cu_verify", args.cu_verify, "[B + 1]", -1);
  checks.at_least<int64_t>("len(cu_verify)", args.cu_verify.size(0), 1);
  o.num_requests = args.cu_verify.size(0) - 1;
  o.requests.req_rows = checks.index("req_rows", args.req_rows, "[B]", o.num_requests);
  o.temperature =
      checks.array<1>("temperature", args.temperature, {ScalarType::Float}, "[R]", {-1});
  const int64_t rows = args.temperature ? args.temperature->size(0) : -1;
  o.requests.num_state_rows = rows < 0 ? std::numeric_limits<int64_t>::max() : rows;
  o.top_k = checks.index("top_k", args.top_k, "[R]", rows);
  o.top_p = checks.array<1>("top_p", args.top_p, {ScalarType::Float}, "[R]", {rows});
  o.min_p = checks.array<1>("min_p", args.min_p, {ScalarType::Float}, "[R]", {rows});
  checks.given("seeds", args.seeds.has_value(), "temperature", args.temperature.has_value());
  o.seeds = checks.index("seeds", args.seeds, "[R]", rows);
  checks.one_of("order", args.order, {"k_then_p", "joint"});
  o.is_joint = args.order == "joint";
  return o;
}

}  // namespace dflash
