// verify_chain: lossless verification of sampled or deterministic chains by rejection.
//
// token: drafts are accepted one by one until the first rejection. block: every prefix has a coin
// of its own, and the longest that is accepted stays (Sun et al. 2024, algorithm 2). The last token
// is drawn from what the target's law has left after the accepted prefix.
//
// Reference: python/dflash_ops/reference/rejection.py
#include <optional>

#include "verify/cpu/chain_rows.h"
#include "verify/cpu/kernels.h"

namespace dflash {
namespace {

class Chain {
 public:
  Chain(const VerifyChainParams& p, int64_t b) : p_(p), b_(b) {
    const RowRange rows = row_range(p.sampling.cu_verify, b, p.options.num_rows);
    first_ = rows.first;
    num_rows_ = rows.count;
    if (!rows.in_range) bits_ |= kOutOfRange;
    state_row_ = p.sampling.requests[b];
    if (p.sampling.requests.is_bad(b)) bits_ |= kOutOfRange;
    if (state_row_ < 0) num_rows_ = 0;
    if (num_rows_ > 0 && !can_enter(0)) num_rows_ = 0;
    is_sampled_ = p.q && (!p.draft_kind || p.draft_kind[b] != 0);
  }

  void run() {
    anchor_idx_ = num_rows_ > 0 ? p_.sampling.positions[first_] : 0;
    bool is_rejected = false;
    for (int64_t i = 0; i < num_rows_; ++i) {
      load(i);
      if (row_->only_id >= 0) bits_ |= kNoFiniteLogit;
      if (i > 0 && p_.is_block) is_rejected = !test_prefix(i);
      if (!is_rejected) end_ = i, end_scale_ = scale_;
      if (p_.is_probe) probe_row(i);
      if (!has_draft_) break;

      const int64_t draft = p_.tokens[first_ + i + 1];
      const float p_draft = row_->prob(draft), q_draft = q_.prob(draft);
      if (i <= p_.max_path) write_token(i, draft, row_->logprob(draft));
      if (p_.is_block) {
        scale_ = next_scale(scale_, p_draft, q_draft);
      } else {
        const float coin = toss(i + 1, accept_prob(p_draft, q_draft));
        is_rejected = is_rejected || !accepts(coin, p_draft, q_draft);
        if (is_rejected && !p_.is_probe) break;
      }
    }
    finish();
  }

 private:
  RowSource source(int64_t i) const { return row_source(p_.options, first_ + i); }
  RowLaw law(int64_t i) const {
    return row_law(p_.sampling, first_ + i, p_.options.num_rows, p_.options.vocab_size);
  }
  bool can_enter(int64_t i) {
    const RowSource from = source(i);
    const RowLaw to = law(i);
    bits_ |= from.status | to.status;
    return from.row >= 0 && !to.is_padded;
  }
  // A draft that is not ends the chain before it, whatever its value: the law stays p.
  bool is_draft_usable(int64_t i) {
    const int64_t id = p_.tokens[first_ + i];
    const bool is_token = id >= 0 && id < p_.options.vocab_size;
    if (!is_token) bits_ |= kBadDraftId;
    return is_token && can_enter(i);
  }
  bool is_law_usable(int64_t row) {
    const bool is_good = read_draft_law(p_, row, is_sampled_, q_);
    if (!is_good) bits_ |= kBadQ;
    return is_good;
  }

  // The laws at row i.
  void load(int64_t i) {
    row_.emplace(target_row(p_.logits, p_.options, source(i), law(i)));
    q_ = DraftLaw{};
    has_draft_ = i + 1 < num_rows_ && is_draft_usable(i + 1) && is_law_usable(first_ + i);
    if (!has_draft_) q_ = DraftLaw{};
    loaded_ = i;
  }

  int64_t seed() const { return p_.sampling.seeds ? p_.sampling.seeds[state_row_] : 0; }
  int64_t token_idx(int64_t parent) const { return p_.sampling.positions[first_ + parent] + 1; }

  // The coin of draft i.
  float toss(int64_t i, float probability) {
    const NoiseKey key = cycle_noise(kCoinStream, seed(), token_idx(i - 1), anchor_idx_, i - 1);
    const float coin = coin_at(key, i);
    if (p_.is_probe) {
      *p_.accept_probs.at<float>(first_ + i) = probability;
      *p_.coins.at<float>(first_ + i) = coin;
      write_counter(i, 0, i, key);
    }
    return coin;
  }
  // Rule block: whether the prefix of i drafts stays.
  bool test_prefix(int64_t i) {
    const float probability =
        has_draft_ ? prefix_accept_prob(scale_, residual_mass(*row_, q_, scale_)) : scale_;
    return toss(i, probability) < probability;
  }
  NoiseKey residual_noise(int64_t i) const {
    return cycle_noise(kResidualStream, seed(), token_idx(i), anchor_idx_, i);
  }
  void write_counter(int64_t i, int64_t which, int64_t c0, const NoiseKey& key) {
    int64_t* to = p_.counters + ((first_ + i) * 2 + which) * 4;
    to[0] = c0, to[1] = key.token_idx, to[2] = key.purpose, to[3] = key.anchor_idx;
  }
  void probe_row(int64_t i) {
    write_weights(*row_, q_, scale_, p_.weights.at<float>(first_ + i), p_.weights.strides[1],
                  p_.options.vocab_size);
    write_counter(i, 1, -1, residual_noise(i));
  }

  void write_token(int64_t col, int64_t id, float logprob) {
    p_.emitted.set(b_, col, id);
    p_.logprobs.at<float>(b_)[col * p_.logprobs.strides[1]] = logprob;
  }
  // The last token, after the first end_ drafts.
  void finish() {
    int64_t count = 0;
    if (num_rows_ > 0) {
      if (end_ > p_.max_path) {  // cut: the next accepted draft is the last token
        bits_ |= kBoundTooSmall;
        end_ = p_.max_path;
      } else {
        if (loaded_ != end_) load(end_);
        const Best last = draw_residual(*row_, q_, end_scale_, residual_noise(end_));
        write_token(end_, last.id, last.value > kMinusInf ? last.value - row_->lse : kMinusInf);
      }
      count = end_ + 1;
    }
    for (int64_t col = 0; col <= p_.max_path; ++col) {
      if (col >= count) write_token(col, -1, 0.0f);
      const int64_t row = first_ + col;
      const bool is_packed = p_.options.verify_rows && col < count;
      p_.accepted_rows.set(b_, col,
                           col >= count ? -1
                           : is_packed  ? p_.options.verify_rows[row]
                                        : row);
    }
    p_.num_accepted.set(b_, end_);
    p_.num_emitted.set(b_, count);
    p_.status.add(b_, bits_);
  }

  const VerifyChainParams& p_;
  int64_t b_;
  int64_t first_;
  int64_t num_rows_;
  int64_t state_row_;
  bool is_sampled_;
  int32_t bits_ = 0;
  int64_t anchor_idx_ = 0;
  float scale_ = 1.0f;  // of rule block
  int64_t end_ = 0;     // accepted drafts
  float end_scale_ = 1.0f;

  std::optional<TargetRow> row_;  // of row loaded_, like the next two
  DraftLaw q_;
  bool has_draft_ = false;
  int64_t loaded_ = -1;
};

}  // namespace

void verify_chain_cpu(const VerifyChainParams& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) Chain(p, b).run();
}

}  // namespace dflash
