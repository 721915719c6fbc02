// The record of lm_head_verify as an argument: its checks.
#pragma once

#include "common/tensor.h"
#include "lm_head/plan.h"
#include "sample/options.h"
#include "verify/chain_params.h"

namespace dflash {

// The record instead of logits: what says what a logit is was lm_head_verify's to know.
inline void check_record(const Checks& checks, const Tensor& tokens, const OptionalTensor& ids,
                         const OptionalTensorList& record, const LogitArgs& logit_args,
                         RejectionParams& p) {
  const bool has_record = record.has_value();
  checks.given("logits or record", has_record, "tokens", true);
  checks.given("record_ids", ids.has_value(), "record", has_record);
  checks.given("vocab_size", logit_args.vocab_size.has_value(), "record", has_record);
  checks.given("logits", false, "logit_scale", logit_args.logit_scale != 1.0);
  checks.given("logits", false, "softcap", logit_args.softcap != 0.0);
  checks.given("logits", false, "vocab_start", logit_args.vocab_start != 0);
  checks.given("logits", false, "token_mask", logit_args.token_mask.has_value());
  checks.given("logits", false, "adj_cu", logit_args.adj_cu.has_value());
  checks.any_tensor("tokens", tokens, "[Tv]", {-1});
  p.options = logit_options(checks, logit_args, tokens.size(0), *logit_args.vocab_size);
  p.options.num_source_rows = std::numeric_limits<int64_t>::max();  // they are not read

  constexpr int64_t kParts = 9;
  checks.at_least("len(record)", static_cast<int64_t>(record->size()), kParts);
  checks.at_most("len(record)", static_cast<int64_t>(record->size()), kParts);
  const int64_t rows = p.options.num_rows;
  checks.tensor("record_ids", *ids, {ScalarType::Int, ScalarType::Long}, "[Tv, K]", {rows, -1});
  const int64_t count = ids->size(1);
  checks.at_most("K", count, kMaxSparseQ);
  const auto floats = [&](const char* name, size_t i) {
    return checks.array<1>(name, (*record)[i], {ScalarType::Float}, "[Tv]", {rows});
  };
  HeadRecord& r = p.record;
  r.ids = checks.index_table("record_ids", *ids, "[Tv, K]", {rows, count});
  r.values =
      checks.array<2>("record.values", (*record)[0], {ScalarType::Float}, "[Tv, K]", {rows, count});
  r.lse = floats("record.lse", 1);
  r.tempered_lse = floats("record.tempered_lse", 2);
  r.rest_ids = checks.index("record.rest_ids", (*record)[3], "[Tv]", rows);
  r.rest_values = floats("record.rest_values", 4);
  r.rest_keys = floats("record.rest_keys", 5);
  r.top_values = checks.array<2>("record.top_values", (*record)[6], {ScalarType::Float}, "[Tv, 64]",
                                 {rows, kMaxTopk});
  r.top_ids = checks.index_table("record.top_ids", (*record)[7], "[Tv, 64]", {rows, kMaxTopk});
  checks.tensor("record.covered", (*record)[8], {ScalarType::Bool}, "[Tv]", {rows});
  r.covered = (*record)[8].const_data_ptr<bool>();
  r.covered_stride = (*record)[8].strides()[0];
}

}  // namespace dflash
