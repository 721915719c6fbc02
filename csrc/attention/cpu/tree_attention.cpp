// tree_attention: softmax(q k) v of packed rows over paged keys and values.
//
// An item loads a block of 64 positions once, and all its (row, query head) pairs use it. Committed
// keys, and those of chains, lie in the block by position. The rows of a tree share positions:
// their keys are scored once per item, and each query row picks its own scores and values from
// them, by position again. So a node, a chain and plain decoding add the same numbers in the same
// order.
//
// Arithmetic: block_products.h, block_softmax.h. Reference:
// python/dflash_ops/reference/attention.py

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
constexpr int64_t kMaxStates = 4;    // a run has at most 4 leaves: 3 levels, and the leaf at work
constexpr int64_t kChunkPairs = 40;  // their scores stay in the first cache until they are used

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
  float* q;            // [pairs, Dk]
  float* k;            // [Dk, kBlockKeys]
  float* v;            // [kBlockKeys, out_dim]
  float* scores;       // [pairs, kBlockKeys]
  float* node_scores;  // [kNodeTiles, pairs, kBlockKeys]
  float* weights;      // [group, kBlockKeys]
  float* alpha;        // [pairs]
  float* states;       // [kMaxStates, result]
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
    k = take(p.k_dim * kBlockKeys);
    v = take(kBlockKeys * out_dim);
    scores = take(pairs * kBlockKeys);
    node_scores = take(kNodeTiles * pairs * kBlockKeys);
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
        products_(is_bf16(p) ? ops.bf16 : ops.floats),
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

  static bool is_bf16(const TreeAttentionParams& p) {
    return p.q.dtype == DType::kBF16 && p.k_cache.dtype == DType::kBF16 &&
           p.v_cache.dtype == DType::kBF16;
  }

  void load_queries() {
    for (int64_t i = 0; i < tile_.num_rows; ++i) {
      for (int64_t g = 0; g < group_; ++g) {
        const int64_t at = (request_.first_row + tile_.row + i) * p_.q.strides[0] +
                           (kv_head_ * group_ + g) * p_.q.strides[1];
        const void* row = element(p_.q.data, p_.q.dtype, at);
        products_.load_queries({&row, nullptr, p_.q.dtype, 1, p_.k_dim},
                               scratch_.q + (i * group_ + g) * p_.k_dim);
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
      present = keys_.present;
    }
    if (has_nodes) {
      load_nodes();
      attend_apart(block_begin, present, true);
    } else if (begin < end) {
      attend_positions(block_begin, present);
    }
    prefetch(ahead_keys_, kBlockKeys);
    prefetch(ahead_values_, kBlockKeys);
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
    const int64_t ahead_end =
        std::min({ahead_begin_ + kBlockKeys, keys_end, end_leaf_ * kLeafKeys});
    if (ahead_begin_ < ahead_end) {
      gather_keys(p_, request_, kv_head_, ahead_begin_, ahead_end, 0, ahead_);
    }
    ahead_keys_ = {ahead_.k, 0, kBlockKeys, bytes_of(p_.k_cache.dtype, p_.k_dim)};
    ahead_values_ = {ahead_.v, 0, kBlockKeys, bytes_of(p_.v_cache.dtype, p_.v_dim)};
  }

  GatheredRows key_rows(const KeyRows& keys) const {
    const float* scales = p_.k_scale.data == nullptr ? nullptr : keys.k_scales;
    return {keys.k, scales, p_.k_cache.dtype, kBlockKeys, p_.k_dim};
  }

  GatheredRows value_rows(const KeyRows& keys) const {
    const float* scales = p_.v_scale.data == nullptr ? nullptr : keys.v_scales;
    return {keys.v, scales, p_.v_cache.dtype, kBlockKeys, p_.v_dim};
  }

  // The loaded keys.
  void score(int64_t first, int64_t count, int64_t num_keys, float* scores) {
    products_.score(scratch_.q + first * p_.k_dim, count, p_.k_dim, scratch_.k, num_keys,
                    scores + first * kBlockKeys, ahead_keys_);
  }

  // The keys of a block by position that query row `i` sees and that are there.
  uint64_t visible_bits(int64_t i, int64_t block_begin, uint64_t present) {
    const uint64_t bits = range_bits(rows_[i].window_begin, rows_[i].keys_end, block_begin);
    const uint64_t in_table = range_bits(request_.table_begin, request_.table_end, block_begin);
    if ((bits & in_table & ~present) != 0) status_ |= kOutOfRange;
    return bits & present;
  }

  // All query rows on the same values, of which those that a row does not see weigh 0.
  void attend_positions(int64_t block_begin, uint64_t present) {
    uint64_t bits[kMaxTileRows], seen = 0;
    bool is_full = true, is_equal = true;
    for (int64_t i = 0; i < tile_.num_rows; ++i) {
      bits[i] = visible_bits(i, block_begin, present);
      seen |= bits[i];
      is_full = is_full && ~bits[i] == 0;
      is_equal = is_equal && (bits[i] == present || bits[i] == 0);
    }
    if (seen == 0) return;
    if (!is_equal && !ops_.all_finite(value_rows(keys_))) {  // 0 times such a value is NaN
      attend_apart(block_begin, present, false);
      return;
    }
    products_.load_keys(key_rows(keys_), scratch_.k);
    products_.load_values(value_rows(keys_), scratch_.v, sizes_.out_dim);
    const int64_t num_keys = pad(std::bit_width(seen));
    const int64_t chunk_rows = std::max<int64_t>(1, kChunkPairs / group_);
    for (int64_t i = 0, next; i < tile_.num_rows; i = next) {
      next = i + 1;
      if (bits[i] == 0) continue;
      while (next < tile_.num_rows && next < i + chunk_rows && bits[next] != 0) ++next;
      score(i * group_, (next - i) * group_, num_keys, scratch_.scores);
      int32_t visible[kMaxTileRows][kBlockKeys];
      for (int64_t row = i; row < next && !is_full; ++row) spread(bits[row], visible[row - i]);
      attend_rows(i, next - i, scratch_.scores + i * group_ * kBlockKeys,
                  is_full ? nullptr : visible[0], num_keys);
    }
  }

  static void spread(uint64_t bits, int32_t* visible) {
    for (int i = 0; i < kBlockKeys; ++i) visible[i] = -static_cast<int32_t>(bits >> i & 1);
  }

  // Query rows and their scores, on the loaded values.
  void attend_rows(int64_t first, int64_t count, float* scores, const int32_t* visible,
                   int64_t num_keys) {
    const int64_t pair = first * group_;
    const SoftmaxBlock block{scores,   visible,    count * group_, group_,
                             p_.scale, p_.softcap, scratch_.alpha};
    const SoftmaxState state{state_.max + pair, state_.sum + pair,
                             state_.out + pair * sizes_.out_dim};
    ops_.softmax(block, state);
    products_.accumulate(block, scratch_.v, num_keys, state.out, sizes_.out_dim, ahead_values_);
  }

  void load_nodes() {
    if (nodes_loaded_) return;
    nodes_loaded_ = true;
    for (int64_t j = 0; j < request_.num_rows; j += kBlockKeys) {
      KeyRows& keys = nodes_[j / kBlockKeys];
      const int64_t begin = request_.ctx_len + j;
      const int64_t end = request_.ctx_len + std::min(j + kBlockKeys, request_.num_rows);
      gather_keys(p_, request_, kv_head_, begin, end, 0, keys);
      products_.load_keys(key_rows(keys), scratch_.k);
      score(0, num_pairs_, pad(end - begin), node_scores(j));
    }
    for (int64_t j = 0; j < request_.num_rows; ++j) {
      node_positions_[j] = row_position(p_, request_, j);
    }
  }

  // Those of node `j` and of the others that were loaded with it.
  float* node_scores(int64_t j) const {
    return scratch_.node_scores + j / kBlockKeys * num_pairs_ * kBlockKeys;
  }

  bool mask_allows(int64_t i, int64_t node) const {
    if (node / 32 >= p_.mask_bits.num_cols) return false;
    const int64_t word = p_.mask_bits(request_.first_row + tile_.row + i, node / 32);
    return (word >> (node % 32) & 1) != 0;
  }

  // Which key stands at each position of the block, for query row `i`: one of the block, or
  // kBlockKeys + that of a node; -1: none.
  void find_keys(int64_t i, int64_t block_begin, uint64_t present, bool has_nodes,
                 int32_t (&source)[kBlockKeys]) {
    const uint64_t committed = visible_bits(i, block_begin, present);
    for (int offset = 0; offset < kBlockKeys; ++offset) {
      source[offset] = (committed >> offset & 1) != 0 ? offset : -1;
    }
    const int64_t begin = std::max(block_begin, rows_[i].window_begin);
    const int64_t end = std::min(block_begin + kBlockKeys, rows_[i].window_end);
    for (int64_t j = 0; has_nodes && j < request_.num_rows; ++j) {
      const int64_t position = node_positions_[j];
      if (position < begin || position >= end || !mask_allows(i, j)) continue;
      if ((nodes_[j / kBlockKeys].present >> (j % kBlockKeys) & 1) == 0) {
        status_ |= kOutOfRange;
        continue;
      }
      int32_t& at = source[position - block_begin];
      if (at >= 0) status_ |= kBadTree;  // two rows at one position: the later stays
      at = static_cast<int32_t>(kBlockKeys + j);
    }
  }

  // Each query row on values of its own, zeros where it sees none.
  void attend_apart(int64_t block_begin, uint64_t present, bool has_nodes) {
    if (present != 0) {
      products_.load_keys(key_rows(keys_), scratch_.k);
      score(0, num_pairs_, kBlockKeys, scratch_.scores);
    }
    for (int64_t i = 0; i < tile_.num_rows; ++i) {
      int32_t source[kBlockKeys], visible[kBlockKeys];
      find_keys(i, block_begin, present, has_nodes, source);
      KeyRows keys{};
      int64_t end = 0;
      for (int64_t offset = 0; offset < kBlockKeys; ++offset) {
        const int64_t at = source[offset];
        visible[offset] = at < 0 ? 0 : -1;
        if (at < 0) continue;
        end = offset + 1;
        const KeyRows& from = at < kBlockKeys ? keys_ : nodes_[at / kBlockKeys - 1];
        keys.v[offset] = from.v[at % kBlockKeys];
        keys.v_scales[offset] = from.v_scales[at % kBlockKeys];
        const float* scores = at < kBlockKeys ? scratch_.scores : node_scores(at - kBlockKeys);
        for (int64_t g = 0; g < group_; ++g) {
          scratch_.weights[g * kBlockKeys + offset] =
              scores[(i * group_ + g) * kBlockKeys + at % kBlockKeys];
        }
      }
      if (end == 0) continue;
      products_.load_values(value_rows(keys), scratch_.v, sizes_.out_dim);
      attend_rows(i, 1, scratch_.weights, visible, pad(end));
    }
  }

  const TreeAttentionParams& p_;
  const BlockOps& ops_;
  const AttentionTile& tile_;
  const AttentionRequest& request_;
  const int64_t group_, kv_head_, num_pairs_;
  const AttentionSizes sizes_;
  const BlockProducts& products_;
  const Scratch scratch_;
  int64_t first_leaf_, end_leaf_;
  SoftmaxState state_{};  // of the leaf at work
  QueryRow rows_[kMaxTileRows];
  int64_t node_positions_[kMaxNodes];
  bool nodes_loaded_ = false;
  KeyRows nodes_[kNodeTiles]{};
  KeyRows keys_{}, ahead_{};  // of the block at work, and of the next
  int64_t ahead_begin_ = -1;
  RowsAhead ahead_keys_{}, ahead_values_{};
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
