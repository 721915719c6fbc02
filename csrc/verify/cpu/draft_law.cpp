#include "verify/cpu/draft_law.h"

#include <algorithm>
#include <limits>

#include "sample/filter.h"
#include "verify/cpu/ids_sum.h"
#include "verify/rejection.h"

namespace dflash {

float DraftLaw::prob(int64_t id) const {
  if (dense != nullptr) return dense[id * dense_stride] / dense_total;
  for (int64_t j = 0; j < count; ++j) {
    if (ids[j] == id) return probs[j];
  }
  return 0.0f;
}

bool DraftLaw::has(int64_t id) const { return std::find(ids, ids + count, id) != ids + count; }

static bool is_good_total(float total) {
  return total > 0.0f && total <= std::numeric_limits<float>::max();
}

static bool read_dense(const RejectionParams& p, int64_t row, std::vector<float>& scattered,
                       DraftLaw& q) {
  const float* values = p.q.at<float>(row);
  const int64_t stride = p.q.strides[1];
  if (p.draft_to_target) scattered.assign(p.options.vocab_size, 0.0f);
  VocabSum sum;
  for (int64_t first = 0; first < p.draft_vocab_size; first += kSpan) {
    const int64_t count = std::min<int64_t>(kSpan, p.draft_vocab_size - first);
    float span[kSpan];
    for (int64_t j = 0; j < count; ++j) span[j] = values[(first + j) * stride];
    if (!law_kernels().are_weights(span, count)) return false;
    sum.add(first, span, count);
    for (int64_t j = 0; j < count && p.draft_to_target; ++j) {
      const float value = span[j];
      if (value == 0.0f) continue;
      const int64_t id = target_id(p, first + j);
      if (id < 0) return false;
      scattered[id] += value;
    }
  }
  q.dense = p.draft_to_target ? scattered.data() : values;
  q.dense_stride = p.draft_to_target ? 1 : stride;
  q.dense_total = sum.value();
  return is_good_total(q.dense_total);
}

static bool read_sparse(const RejectionParams& p, int64_t row, DraftLaw& q) {
  OrderedSum sum;
  for (int64_t j = 0; j < p.q_ids.num_cols; ++j) {
    const int64_t draft_id = p.q_ids(row, j);
    if (draft_id == -1) continue;
    const int64_t id = target_id(p, draft_id);
    const float value = p.q.at<float>(row)[j * p.q.strides[1]];
    if (!(value >= 0.0f) || id < 0) return false;
    sum.add(value);
    const int64_t at = std::find(q.ids, q.ids + q.count, id) - q.ids;
    if (at == q.count) {
      q.ids[q.count] = id;
      q.probs[q.count++] = 0.0f;
    }
    q.probs[at] += value;
  }
  const float total = sum.value();
  if (!is_good_total(total)) return false;
  for (int64_t j = 0; j < q.count; ++j) q.probs[j] /= total;
  return true;
}

bool read_draft_law(const RejectionParams& p, int64_t row, bool is_sampled,
                    std::vector<float>& scattered, DraftLaw& q) {
  if (is_sampled) return p.q_ids ? read_sparse(p, row, q) : read_dense(p, row, scattered, q);
  q.ids[0] = p.tokens[row + 1];  // one-hot at the draft, which is in the next row
  q.probs[0] = 1.0f;
  q.count = 1;
  return true;
}

}  // namespace dflash
