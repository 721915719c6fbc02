// One row of logits, span after span: shaping, log-sum-exp, and the choice of a token. Shared by
// the ops that have the logits in memory and those that make them.
#pragma once

#include "sample/cpu/span.h"
#include "sample/cpu/top_keys.h"
#include "sample/ids.h"

namespace dflash {

inline constexpr int kTopCount = 64;      // best candidates that every filtered row collects
inline constexpr int kTopCapacity = 256;  // of their buffer

// The spans that hold ids: first .. last - 1.
inline int64_t first_span(const IdRange& ids) { return ids.first / kSpan; }
inline int64_t last_span(const IdRange& ids) {
  return ids.last <= ids.first ? first_span(ids) : (ids.last - 1) / kSpan + 1;
}

// Makes logits of products, in place: values[i] belongs to id first_id + i; -inf outside `ids`.
void shape_span(const LogitOptions& o, const RowSource& source, const IdRange& ids, DType round_to,
                int64_t first_id, float* values);

// The lowest id that the row's mask allows; the lowest of all if it allows none; -1 if there are
// no ids.
int64_t lowest_allowed(const LogitOptions& o, const RowSource& source, const IdRange& ids);

// What a row's token is chosen from; whoever merges several may do so in any order.
struct RowScan {
  Best best;    // greedy and unfiltered rows
  TopKeys top;  // filtered rows
};

void scan_span(const RowLaw& law, const float* values, int64_t first_id, RowScan& scan);
void scan_greedy(const float* values, int64_t first_id, Best& best);
void scan_sampled(float inv_temperature, const NoiseKey& noise, const float* values,
                  int64_t first_id, Best& best);
void scan_top(const float* values, int64_t first_id, TopKeys& top);

// The draw among the first `count` keys.
Best draw_among(const RowLaw& law, const uint64_t* keys, int64_t count);

// What a scan tells of a row's token.
struct Choice {
  Best best;
  bool is_known;  // else the filter keeps more than the scan's best candidates
};
Choice choose(const RowLaw& law, RowScan& scan, float tempered_lse);

// A row's results.
struct Token {
  int64_t id = -1;
  float logprob = 0.0f;
  int32_t status = 0;
};
Token token_of(const LogitOptions& o, const RowSource& source, const IdRange& ids, const Best& best,
               float lse);

// Reads span after span of a row's shaped logits.
struct SpanReader {
  virtual void read(int64_t span, float* values) const = 0;

 protected:
  ~SpanReader() = default;
};

// Of logits in memory.
struct LogitReader final : SpanReader {
  const ArrayView<2>& logits;
  const LogitOptions& options;
  RowSource source;
  IdRange ids;

  LogitReader(const ArrayView<2>& rows, const LogitOptions& o, const RowSource& row)
      : logits(rows), options(o), source(row), ids(id_range(o)) {}
  void read(int64_t span, float* values) const override;
  float read_one(int64_t id) const;  // of `ids`

 private:
  void load(int64_t first, int64_t count, float* values) const;
};

// The draw of a filtered row whose kept set may be of any size: passes over the row, each of which
// finds the next candidates in order, 2048 and then 16384.
Best draw_in_passes(const RowLaw& law, const IdRange& ids, float tempered_lse,
                    const SpanReader& reader);

// What a filter keeps of a row with a finite logit: everything down to the key `least`. `sum` is
// that of exp(z / T - max).
struct Kept {
  uint64_t least;
  float max;
  float sum;
};
Kept kept_set(const RowLaw& law, const IdRange& ids, TopKeys& top, float tempered_lse,
              const SpanReader& reader);

}  // namespace dflash
