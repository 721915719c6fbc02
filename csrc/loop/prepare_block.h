// prepare_block, torch side: checks and outputs, the same for every backend. A backend is a
// function void run(const PrepareBlockParams&, int32_t device_idx).
#pragma once

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/tensor.h"
#include "loop/params.h"

namespace dflash {

template <auto kRun>
void prepare_block_out(const Tensor& tokens, const Tensor& ctx_lens, const Tensor& block_table,
                       const OptionalTensor& req_rows, const OptionalTensor& table_start,
                       const OptionalTensor& block_lens, int64_t max_block, int64_t mask_id,
                       int64_t page_size, int64_t num_pages, bool sample_from_anchor,
                       int64_t null_page, const OptionalTensor& status, const Tensor& ids,
                       const Tensor& positions, const Tensor& slots, const Tensor& draft_rows,
                       const Tensor& num_drafts) {
  const Checks checks{"prepare_block", tokens};
  PrepareBlockParams p{};
  p.tokens = checks.index_table("tokens", tokens, "[R, capacity]", {-1, -1});
  const int64_t num_state_rows = tokens.size(0);
  p.ctx_lens = checks.index("ctx_lens", ctx_lens, "[R]", num_state_rows);
  p.pages.block_table =
      checks.index_table("block_table", block_table, "[R, max_pages]", {num_state_rows, -1});
  p.pages.table_start = checks.index("table_start", table_start, "[R]", num_state_rows);
  p.requests = {checks.index("req_rows", req_rows, "[B]", -1), num_state_rows};
  p.num_requests = req_rows ? req_rows->size(0) : num_state_rows;
  p.block_lens = checks.index("block_lens", block_lens, "[B]", p.num_requests);
  checks.at_least<int64_t>("max_block", max_block, 1);
  checks.at_least<int64_t>("mask_id", mask_id, 0);
  checks.at_least<int64_t>("page_size", page_size, 1);
  checks.at_least<int64_t>("num_pages", num_pages, 0);
  p.pages.num_pages = num_pages;
  p.pages.page_size = page_size;
  p.pages.null_page = null_page;
  p.max_block = max_block;
  p.mask_id = mask_id;
  p.samples_from_anchor = sample_from_anchor;
  p.status = checks.status(status, "[B]", p.num_requests);

  const int64_t batch = p.num_requests;
  const int64_t max_drafts = drafts_of_block(max_block, sample_from_anchor);
  p.ids = checks.index_out("ids", ids, "[B, max_block]", {batch, max_block});
  p.positions = checks.index_out("positions", positions, "[B, max_block]", {batch, max_block});
  p.slots = checks.index_out("slots", slots, "[B, max_block]", {batch, max_block});
  p.draft_rows = checks.index_out("draft_rows", draft_rows, "[B, max_drafts]", {batch, max_drafts});
  p.num_drafts = checks.index_out("num_drafts", num_drafts, "[B]", {batch});
  kRun(p, tokens.get_device_index());
}

template <auto kRun>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> prepare_block(
    const Tensor& tokens, const Tensor& ctx_lens, const Tensor& block_table,
    const OptionalTensor& req_rows, const OptionalTensor& table_start,
    const OptionalTensor& block_lens, int64_t max_block, int64_t mask_id, int64_t page_size,
    int64_t num_pages, bool sample_from_anchor, int64_t null_page, const OptionalTensor& status) {
  // Not checked yet, so only kept from being negative: prepare_block_out says what is wrong.
  const int64_t batch = req_rows ? req_rows->numel() : tokens.dim() > 0 ? tokens.size(0) : 0;
  const int64_t rows = std::max<int64_t>(max_block, 1);
  const auto ints = [&](IntHeaderOnlyArrayRef shape) {
    return new_tensor(tokens, shape, ScalarType::Long);
  };
  std::tuple outs{ints({batch, rows}), ints({batch, rows}), ints({batch, rows}),
                  ints({batch, drafts_of_block(rows, sample_from_anchor)}), ints({batch})};
  const auto& [ids, positions, slots, draft_rows, num_drafts] = outs;
  prepare_block_out<kRun>(tokens, ctx_lens, block_table, req_rows, table_start, block_lens,
                          max_block, mask_id, page_size, num_pages, sample_from_anchor, null_page,
                          status, ids, positions, slots, draft_rows, num_drafts);
  return outs;
}

}  // namespace dflash
