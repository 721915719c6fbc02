// tree_attention: softmax(q k) v of packed rows over paged keys and values.
//
// An item loads a block of 64 positions once, as floats, and all its (row, query head) pairs use
// it. Committed keys, and those of chains, lie in the block by position. The rows of a tree share
// positions: their keys are loaded once per item, and each query row picks its own from them, by
// position again. So a node, a chain and plain decoding add the same numbers in the same order.
//
// Arithmetic: block_impl.h. Reference: python/dflash_ops/reference/attention.py

#include <algorithm>
#include <bit>
#include <limits>

#include "attention/cpu/kernels.h"
#include "attention/cpu/key_rows.h"
#include "attention/cpu/merge_tree.h"
#include "common/cpu/isa.h"

namespace dflash {
namespace {

constexpr int64_t kLeafBlocks = kLeafKeys / kBlockKeys;
constexpr int64_t kNodeTiles = kMaxNodes / kBlockKeys;
constexpr int64_t kScoreStride = kBlockKeys + kMaxNodes;  // a block, then the request's nodes
constexpr int64_t kMaxStates = 4;    // a run has at most 4 leaves: 3 levels, and the leaf at work
constexpr int64_t kChunkPairs = 32;  // their scores stay in the first cache until they are used

int64_t pad(int64_t n) { return (n + kLaneMultiple - 1) / kLaneMultiple * kLaneMultiple; }

// Bit i: position block_begin + i lies in begin .. end - 1.
uint64_t range_bits(int64_t begin, int64_t end, int64_t block_begin) {
  const int64_t low = std::clamp<int64_t>(begin - block_begin, 0, kBlockKeys);
  const int64_t high = std::clamp<int64_t>(end - block_begin, 0, kBlockKeys);
  return low < high ? ~uint64_t{0} >> (kBlockKeys - (high - low)) << low : 0;
}

SoftmaxState state_at(float* buffer, int64_t num_pairs) {
  return {buffer, buffer + num_pairs, buffer + pad(2 * num_pairs)};
}

struct Scratch {
  float* q;        // [pairs, Dk]
  float* k;        // [1 + kNodeTiles, Dk, kBlockKeys]
  float* v;        // [kScoreStride, out_dim]
  float* scores;   // [pairs, kScoreStride]
  float* weights;  // [group, kBlockKeys]
  float* alpha;    // [pairs]
  float* states;   // [kMaxStates, result]
  int64_t end;

  Scratch(float* base, const TreeAttentionParams& p, int64_t pairs, int64_t out_dim,
          int64_t result) {
    int64_t used = 0;
    const auto take = [&](int64_t n) {
      float* part = base == nullptr ? nullptr : base + used;
      used += pad(n);
      return part;
    };
    q = take(pairs * p.k_dim);
    k = take((1 + kNodeTiles) * p.k_dim * kBlockKeys);
    v = take(kScoreStride * out_dim);
    scores = take(pairs * kScoreStride);
    weights = take(p.num_heads / p.num_kv_heads * kBlockKeys);
    alpha = take(pairs);
    states = take(kMaxStates * result);
    end = used;
  }
};

// What a query row may see.
struct QueryRow {
  int64_t window_begin, window_end;  // positions
  int64_t keys_end;  // end of those that are keys by position: committed ones, and a chain's own
};

class Item {
 public:
  Item(const TreeAttentionParams& p, const AttentionPlan& plan, const BlockOps& ops, int64_t item,
       float* scratch)
      : p_(p),
        ops_(ops),
        tile_(plan.tile_of(item)),
        request_(plan.requests[tile_.request]),
        group_(p.num_heads / p.num_kv_heads),
        kv_head_((item - tile_.first_item) % p.num_kv_heads),
        num_pairs_(tile_.num_rows * group_),
        sizes_(attention_sizes(p, plan)),
        uses_pairs_(ops.bf16_pairs.score != nullptr && p.q.dtype == DType::kBF16 &&
                    p.k_cache.dtype == DType::kBF16),
        score_ops_(uses_pairs_ ? ops.bf16_pairs : ops.floats),
        k_words_(uses_pairs_ ? p.k_dim / 2 : p.k_dim),
        scratch_(scratch, p, plan.max_pairs, sizes_.out_dim, sizes_.result) {
    const int64_t run = tile_.first_run + (item - tile_.first_item) / p.num_kv_heads;
    first_leaf_ = run * plan.run_leaves;
    end_leaf_ = first_leaf_ + plan.run_leaves;
  }

  // The state after the run, in scratch, or with `result` there.
  SoftmaxState attend(float* result) {
    load_queries();
    bound_rows();
    MergeTree tree(ops_, num_pairs_, sizes_.out_dim);
    const int64_t first = std::max(first_leaf_, tile_.key_begin / kLeafKeys);
    const int64_t end = std::min(end_leaf_, (tile_.key_end + kLeafKeys - 1) / kLeafKeys);
    float* first_buffer = result != nullptr ? result : scratch_.states;
    const auto buffer = [&](int i) {
      return state_at(i == 0 ? first_buffer : scratch_.states + i * sizes_.result, num_pairs_);
    };
    if (first >= end) clear(buffer(0));
    for (int64_t leaf = first; leaf < end; ++leaf) {
      state_ = buffer(tree.make_room(leaf));
      clear(state_);
      for (int64_t i = 0; i < kLeafBlocks; ++i) attend_block(leaf * kLeafKeys + i * kBlockKeys);
      tree.push(state_);
    }
    tree.finish();
    return buffer(0);
  }

  void write(const SoftmaxState& state) const {
    write_rows(p_, request_.first_row + tile_.row, tile_.num_rows, kv_head_, sizes_.out_dim, state);
  }

  int32_t status() const { return status_; }

 private:
  void clear(const SoftmaxState& state) const {
    std::fill_n(state.max, num_pairs_, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, num_pairs_, 0.0f);
    std::fill_n(state.out, num_pairs_ * sizes_.out_dim, 0.0f);
  }

  DType word_dtype(DType dtype) const { return uses_pairs_ ? DType::kF32 : dtype; }

  void load_queries() {
    for (int64_t i = 0; i < tile_.num_rows; ++i) {
      for (int64_t g = 0; g < group_; ++g) {
        const int64_t at = (request_.first_row + tile_.row + i) * p_.q.strides[0] +
                           (kv_head_ * group_ + g) * p_.q.strides[1];
        const void* row = element(p_.q.data, p_.q.dtype, at);
        score_ops_.load_rows({&row, nullptr, word_dtype(p_.q.dtype), 1, k_words_},
                             scratch_.q + (i * group_ + g) * k_words_, k_words_);
      }
    }
  }

  void bound_rows() {
    constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max() / 2;
    for (int64_t i = 0; i < tile_.num_rows; ++i) {
      const int64_t position = row_position(p_, request_, tile_.row + i);
      QueryRow& row = rows_[i];
      row.window_begin = request_.kv_start;
      if (p_.window_left >= 0) {
        row.window_begin =
            std::max(row.window_begin, position - std::min(p_.window_left, kUnbounded));
      }
      row.window_end =
          p_.window_right < 0 ? kUnbounded : position + std::min(p_.window_right, kUnbounded) + 1;
      const int64_t end = request_.is_tree ? request_.ctx_len
                          : p_.causal      ? position + 1
                                           : request_.ctx_len + request_.num_rows;
      row.keys_end = std::min(end, row.window_end);
      if (row.window_begin < std::min(row.keys_end, request_.table_begin) ||
          row.keys_end > std::max(row.window_begin, request_.table_end)) {
        status_ |= kOutOfRange;  // it may see keys before or after those of the page table
      }
    }
  }

  void attend_block(int64_t block_begin) {
    const int64_t keys_end =
        request_.is_tree ? std::min(tile_.key_end, request_.ctx_len) : tile_.key_end;
    const int64_t begin = std::max(block_begin, tile_.key_begin);
    const int64_t end = std::min(block_begin + kBlockKeys, keys_end);
    const bool has_nodes = request_.is_tree && block_begin + kBlockKeys > request_.ctx_len &&
                           block_begin < tile_.key_end;
    uint64_t present = 0;
    if (begin < end) {
      look_ahead(block_begin, begin, end, keys_end);
      load_keys(keys_, 0);
      present = keys_.present;
    }
    if (has_nodes) {
      attend_nodes(block_begin, present);
    } else if (begin < end) {
      attend_positions(block_begin, present);
    }
    prefetch(kBlockKeys);
  }

  // Finds the keys begin .. end - 1 of a block, and those of the next, which then come into the
  // cache while this one is at work.
  void look_ahead(int64_t block_begin, int64_t begin, int64_t end, int64_t keys_end) {
    if (begin == ahead_begin_) {
      keys_ = ahead_;
    } else {
      keys_ = {};
      gather_keys(p_, request_, kv_head_, begin, end, begin - block_begin, keys_);
    }
    ahead_ = {};
    ahead_begin_ = block_begin + kBlockKeys;
    ahead_row_ = 0;
    const int64_t ahead_end =
        std::min({ahead_begin_ + kBlockKeys, keys_end, end_leaf_ * kLeafKeys});
    if (ahead_begin_ < ahead_end) {
      gather_keys(p_, request_, kv_head_, ahead_begin_, ahead_end, 0, ahead_);
    }
  }

  void prefetch(int64_t num_rows) {
    const int64_t end = std::min<int64_t>(ahead_row_ + num_rows, kBlockKeys);
    for (; ahead_row_ < end; ++ahead_row_) {
      prefetch_row(ahead_.k[ahead_row_], p_.k_cache.dtype, p_.k_dim);
      prefetch_row(ahead_.v[ahead_row_], p_.v_cache.dtype, p_.v_dim);
    }
  }

  // Keys and values of the `part`-th 64 columns.
  void load_keys(const KeyRows& keys, int64_t part) {
    const float* k_scales = p_.k_scale.data == nullptr ? nullptr : keys.k_scales;
    const float* v_scales = p_.v_scale.data == nullptr ? nullptr : keys.v_scales;
    score_ops_.load_transposed(
        {keys.k, k_scales, word_dtype(p_.k_cache.dtype), kBlockKeys, k_words_},
        scratch_.k + part * k_words_ * kBlockKeys);
    ops_.floats.load_rows({keys.v, v_scales, p_.v_cache.dtype, kBlockKeys, p_.v_dim},
                          scratch_.v + part * kBlockKeys * sizes_.out_dim, sizes_.out_dim);
  }

  float* scores_of(int64_t pair) const { return scratch_.scores + pair * kScoreStride; }

  void score(int64_t first, int64_t count, int64_t part) {
    score_ops_.score(scratch_.q + first * k_words_, count, k_words_,
                     scratch_.k + part * k_words_ * kBlockKeys,
                     scores_of(first) + part * kBlockKeys, kScoreStride);
  }

  // The keys of a block by position that query row `i` sees and that are there.
  uint64_t visible_bits(int64_t i, int64_t block_begin, uint64_t present) {
    const uint64_t bits = range_bits(rows_[i].window_begin, rows_[i].keys_end, block_begin);
    const uint64_t in_table = range_bits(request_.table_begin, request_.table_end, block_begin);
    if ((bits & in_table & ~present) != 0) status_ |= kOutOfRange;
    return bits & present;
  }

  void attend_positions(int64_t block_begin, uint64_t present) {
    for (int64_t i = 0, next; i < tile_.num_rows; i = next) {
      const uint64_t bits = visible_bits(i, block_begin, present);
      next = i + 1;
      while (next < tile_.num_rows && visible_bits(next, block_begin, present) == bits) ++next;
      if (bits == 0) continue;
      KeyList keys{};
      for (uint64_t rest = bits; rest != 0; rest &= rest - 1) {
        const int offset = std::countr_zero(rest);
        keys.offset[keys.count] = keys.row[keys.count] = offset;
        ++keys.count;
      }
      const int64_t num_steps = 2 * ((num_pairs_ + kChunkPairs - 1) / kChunkPairs);
      const int64_t rows_per_step = (kBlockKeys + num_steps - 1) / num_steps;
      for (int64_t pair = i * group_; pair < next * group_; pair += kChunkPairs) {
        const int64_t count = std::min(kChunkPairs, next * group_ - pair);
        score(pair, count, 0);
        prefetch(rows_per_step);
        attend_pairs(pair, count, scores_of(pair), kScoreStride, keys);
        prefetch(rows_per_step);
      }
    }
  }

  void attend_pairs(int64_t first, int64_t count, float* scores, int64_t stride,
                    const KeyList& keys) {
    int32_t visible[kBlockKeys] = {};
    for (int32_t i = 0; i < keys.count; ++i) visible[keys.offset[i]] = -1;
    const bool is_full = keys.count == kBlockKeys;
    const SoftmaxBlock block{
        scores, stride, is_full ? nullptr : visible, count, p_.scale, p_.softcap, scratch_.alpha};
    const SoftmaxState state{state_.max + first, state_.sum + first,
                             state_.out + first * sizes_.out_dim};
    ops_.softmax(block, state);
    ops_.accumulate(block, keys, scratch_.v, state.out, sizes_.out_dim);
  }

  void load_nodes() {
    if (nodes_loaded_) return;
    nodes_loaded_ = true;
    for (int64_t j = 0; j < request_.num_rows; j += kBlockKeys) {
      KeyRows keys{};
      const int64_t begin = request_.ctx_len + j;
      const int64_t end = request_.ctx_len + std::min(j + kBlockKeys, request_.num_rows);
      gather_keys(p_, request_, kv_head_, begin, end, 0, keys);
      load_keys(keys, 1 + j / kBlockKeys);
      score(0, num_pairs_, 1 + j / kBlockKeys);
      node_present_[j / kBlockKeys] = keys.present;
    }
    for (int64_t j = 0; j < request_.num_rows; ++j) {
      node_positions_[j] = row_position(p_, request_, j);
    }
  }

  bool mask_allows(int64_t i, int64_t node) const {
    if (node / 32 >= p_.mask_bits.num_cols) return false;
    const int64_t word = p_.mask_bits(request_.first_row + tile_.row + i, node / 32);
    return (word >> (node % 32) & 1) != 0;
  }

  // Which of the loaded keys stands at each position of the block, for query row `i`.
  KeyList node_keys(int64_t i, int64_t block_begin, uint64_t present) {
    int32_t source[kBlockKeys];
    const uint64_t committed = visible_bits(i, block_begin, present);
    for (int offset = 0; offset < kBlockKeys; ++offset) {
      source[offset] = (committed >> offset & 1) != 0 ? offset : -1;
    }
    const int64_t begin = std::max(block_begin, rows_[i].window_begin);
    const int64_t end = std::min(block_begin + kBlockKeys, rows_[i].window_end);
    for (int64_t j = 0; j < request_.num_rows; ++j) {
      const int64_t position = node_positions_[j];
      if (position < begin || position >= end || !mask_allows(i, j)) continue;
      if ((node_present_[j / kBlockKeys] >> (j % kBlockKeys) & 1) == 0) {
        status_ |= kOutOfRange;
        continue;
      }
      int32_t& at = source[position - block_begin];
      if (at >= 0) status_ |= kBadTree;  // two rows at one position: the later stays
      at = static_cast<int32_t>(kBlockKeys + j);
    }
    KeyList keys{};
    for (int offset = 0; offset < kBlockKeys; ++offset) {
      if (source[offset] < 0) continue;
      keys.offset[keys.count] = offset;
      keys.row[keys.count] = source[offset];
      ++keys.count;
    }
    return keys;
  }

  void attend_nodes(int64_t block_begin, uint64_t present) {
    load_nodes();
    if (present != 0) score(0, num_pairs_, 0);
    for (int64_t i = 0; i < tile_.num_rows; ++i) {
      const KeyList keys = node_keys(i, block_begin, present);
      if (keys.count == 0) continue;
      std::fill_n(scratch_.weights, group_ * kBlockKeys, 0.0f);
      for (int64_t g = 0; g < group_; ++g) {
        const float* scores = scores_of(i * group_ + g);
        for (int32_t n = 0; n < keys.count; ++n) {
          scratch_.weights[g * kBlockKeys + keys.offset[n]] = scores[keys.row[n]];
        }
      }
      attend_pairs(i * group_, group_, scratch_.weights, kBlockKeys, keys);
    }
  }

  const TreeAttentionParams& p_;
  const BlockOps& ops_;
  const AttentionTile& tile_;
  const AttentionRequest& request_;
  const int64_t group_, kv_head_, num_pairs_;
  const AttentionSizes sizes_;
  const bool uses_pairs_;  // queries and keys as words of two bf16 elements
  const ScoreOps& score_ops_;
  const int64_t k_words_;
  const Scratch scratch_;
  int64_t first_leaf_, end_leaf_;
  SoftmaxState state_{};  // of the leaf at work
  QueryRow rows_[kMaxTileRows];
  int64_t node_positions_[kMaxNodes];
  uint64_t node_present_[kNodeTiles] = {};
  bool nodes_loaded_ = false;
  KeyRows keys_{}, ahead_{};  // of the block at work, and of the next
  int64_t ahead_begin_ = -1;
  int64_t ahead_row_ = kBlockKeys;  // how far the next block was prefetched
  int32_t status_ = 0;
};

}  // namespace

AttentionSizes attention_sizes(const TreeAttentionParams& p, const AttentionPlan& plan) {
  AttentionSizes sizes{};
  sizes.out_dim = pad(p.v_dim);
  sizes.result = pad(2 * plan.max_pairs) + plan.max_pairs * sizes.out_dim;
  sizes.scratch = Scratch(nullptr, p, plan.max_pairs, sizes.out_dim, sizes.result).end;
  return sizes;
}

int32_t tree_attention_item(const TreeAttentionParams& p, const AttentionPlan& plan,
                            const BlockOps& ops, int64_t item, float* scratch, float* results) {
  const FlushDenormals flush;
  Item work(p, plan, ops, item, scratch);
  if (plan.tile_of(item).num_runs == 1) {
    work.write(work.attend(nullptr));
  } else {
    work.attend(results + item * attention_sizes(p, plan).result);
  }
  return work.status();
}

void tree_attention_merge(const TreeAttentionParams& p, const AttentionPlan& plan,
                          const BlockOps& ops, int64_t tile_idx, int64_t kv_head, float* results) {
  const AttentionTile& tile = plan.tiles[tile_idx];
  if (tile.num_runs == 1) return;
  const FlushDenormals flush;
  const int64_t group = p.num_heads / p.num_kv_heads, num_pairs = tile.num_rows * group;
  const AttentionSizes sizes = attention_sizes(p, plan);
  const auto state = [&](int64_t i) {
    const int64_t item = tile.first_item + i * p.num_kv_heads + kv_head;
    return state_at(results + item * sizes.result, num_pairs);
  };
  MergeTree tree(ops, num_pairs, sizes.out_dim);
  for (int64_t i = 0; i < tile.num_runs; ++i) {
    tree.make_room(tile.first_run + i);
    tree.push(state(i));
  }
  tree.finish();
  write_rows(p, plan.requests[tile.request].first_row + tile.row, tile.num_rows, kv_head,
             sizes.out_dim, state(0));
}

}  // namespace dflash
