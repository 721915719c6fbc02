// merge_shards: each row's best candidates of all shards, and its log-sum-exp.
//
// Reference: python/dflash_ops/reference/lm_head.py
#include "lm_head/cpu/merge_shards.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "sample/keys.h"
#include "sample/lse.h"

namespace dflash {
namespace {

struct Candidate {
  uint64_t order;
  float key;
  float value;
  int64_t id;

  bool operator>(const Candidate& other) const { return order > other.order; }
};

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int64_t kMaxId = 0xffffffff;

// An id without a finite key is one only if no other has one: the lowest that a shard allows.
void collect(const MergeShardsParams& p, int64_t row, std::vector<Candidate>& list) {
  list.clear();
  int64_t lowest = -1;
  for (int64_t s = 0; s < p.num_shards; ++s) {
    for (int64_t k = 0; k < p.count; ++k) {
      const int64_t id = p.ids(s, row, k);
      if (id == -1) continue;
      if (id < 0 || id >= kMaxId) {
        p.status.add(row, kOutOfRange);
        continue;
      }
      const float key = p.keys.at<float>(s)[row * p.keys.strides[1] + k * p.keys.strides[2]];
      if (!(key > kMinusInf)) {
        if (key == kMinusInf && (lowest < 0 || id < lowest)) lowest = id;
        continue;
      }
      const float value =
          p.has_values ? p.values.at<float>(s)[row * p.values.strides[1] + k * p.values.strides[2]]
                       : 0.0f;
      const float finite = std::min(key, kLargest) + 0.0f;
      list.push_back({candidate_key(finite, id), finite, value, id});
    }
  }
  if (list.empty() && lowest >= 0) list.push_back({0, kMinusInf, kMinusInf, lowest});
}

void write(const MergeShardsParams& p, int64_t row, int64_t k, const Candidate& from) {
  p.out_keys.at<float>(row)[k * p.out_keys.strides[1]] = from.key;
  p.out_ids.set(row, k, from.id);
  if (p.has_values) p.out_values.at<float>(row)[k * p.out_values.strides[1]] = from.value;
}

// Rank after rank, so the bits depend on nothing but the shards.
float merged_lse(const MergeShardsParams& p, int64_t row) {
  LseNode all{kMinusInf, 0.0f};
  for (int64_t s = 0; s < p.num_shards; ++s) {
    const float lse = p.lse.at<float>(s)[row * p.lse.strides[1]];
    if (lse > kMinusInf) all = merge_lse(all, {std::min(lse, kLargest), 1.0f});
  }
  return lse_of(all);
}

}  // namespace

void merge_shards_cpu(const MergeShardsParams& p, int64_t begin, int64_t end) {
  std::vector<Candidate> list;
  for (int64_t row = begin; row < end; ++row) {
    collect(p, row, list);
    const int64_t found = std::min(p.count, static_cast<int64_t>(list.size()));
    std::partial_sort(list.begin(), list.begin() + found, list.end(), std::greater<>());
    const Candidate none{0, kMinusInf, kMinusInf, -1};
    for (int64_t k = 0; k < p.count; ++k) write(p, row, k, k < found ? list[k] : none);
    *p.out_lse.at<float>(row) = merged_lse(p, row);
  }
}

}  // namespace dflash
