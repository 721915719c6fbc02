// verify_chain: lossless verification of sampled or deterministic chains by rejection.
//
// token: drafts are accepted one by one until the first rejection. block: every prefix has a coin
// of its own, and the longest that is accepted stays (Sun et al. 2024, algorithm 2). The last token
// is drawn from what the target's law has left after the accepted prefix.
//
// Reference: python/dflash_ops/reference/rejection.py
#include <optional>

#include "verify/cpu/kernels.h"
#include "verify/cpu/request.h"

namespace dflash {
namespace {

template <class Row>
class Chain : RejectionRequest {
 public:
  Chain(const VerifyChainParams& p, int64_t b, bool may_share_rows)
      : RejectionRequest(p, b, may_share_rows), is_block_(p.is_block), max_path_(p.max_path) {}

  void run() {
    bool is_rejected = false;
    for (int64_t i = 0; i < num_rows_; ++i) {
      load(i);
      if (i > 0 && is_block_) is_rejected = !test_prefix(i);
      if (!is_rejected) end_ = i, end_scale_ = scale_;
      if (p_.is_probe) probe_row(i, *row_, q_, scale_);
      if (!has_draft_) break;

      const int64_t draft = token(i + 1);
      const float p_draft = prob_of(*row_, draft), q_draft = q_.prob(draft);
      if (i <= max_path_) write_token(i, draft, logprob(row_->logit(draft), *row_));
      if (is_block_) {
        scale_ = next_scale(scale_, p_draft, q_draft);
      } else {
        const float coin = toss(i + 1, i, accept_prob(p_draft, q_draft));
        is_rejected = is_rejected || !accepts(coin, p_draft, q_draft);
        if (is_rejected && !p_.is_probe) break;
      }
    }
    finish();
  }

 private:
  // The laws at row i. A draft that is not usable ends the chain before it, whatever its value: the
  // law stays p. A row that nothing can be drawn from ends the path before it.
  void load(int64_t i) {
    row_.emplace(load_target<Row>(i));
    if (!row_->can_draw()) max_path_ = std::min(max_path_, i - 1);
    q_ = DraftLaw{};
    has_draft_ = i + 1 < num_rows_ && is_draft_usable(i + 1) && is_law_usable(i, q_);
    if (has_draft_) {
      const int32_t missing = row_->missing(q_, token(i + 1));
      bits_ |= missing;
      has_draft_ = missing == 0;
    }
    if (!has_draft_) q_ = DraftLaw{};
    loaded_ = i;
  }

  // Rule block: whether the prefix of i drafts stays.
  bool test_prefix(int64_t i) {
    const float probability =
        has_draft_ ? prefix_accept_prob(scale_, residual_mass(*row_, q_, scale_)) : scale_;
    return toss(i, i - 1, probability) < probability;
  }

  // The last token, after the first end_ drafts.
  void finish() {
    int64_t count = 0;
    if (num_rows_ > 0) {
      if (end_ > max_path_) {  // cut: the next accepted draft is the last token
        bits_ |= kBoundTooSmall;
        end_ = max_path_;
      } else {
        if (loaded_ != end_) load(end_);
        const Best last = draw_last(end_, *row_, q_, end_scale_);
        write_token(end_, last.id, logprob(last.value, *row_));
      }
      count = end_ + 1;
    }
    for (int64_t i = 0; i < count; ++i) write_path_row(i, i);
    write_counts(count);
  }

  bool is_block_;
  int64_t max_path_;
  float scale_ = 1.0f;  // of rule block
  int64_t end_ = 0;     // accepted drafts
  float end_scale_ = 1.0f;

  std::optional<Row> row_;  // of row loaded_, like the next two
  DraftLaw q_;
  bool has_draft_ = false;
  int64_t loaded_ = -1;
};

}  // namespace

void verify_chain_cpu(const VerifyChainParams& p, int64_t begin, int64_t end) {
  const bool may_share = may_share_rows(p.sampling);
  for (int64_t b = begin; b < end; ++b) {
    if (p.logits) {
      Chain<TargetRow>(p, b, may_share).run();
    } else {
      Chain<RecordRow>(p, b, may_share).run();
    }
  }
}

}  // namespace dflash
