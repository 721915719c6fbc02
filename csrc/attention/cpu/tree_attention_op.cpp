#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>

#include "attention/cpu/kernels.h"
#include "attention/tree_attention.h"

namespace dflash {

static void run_cpu(const TreeAttentionParams& p, const Tensor& q) {
  const int64_t num_threads = torch::stable::get_num_threads();
  AttentionPlan plan = plan_tree_attention(p, num_threads);
  const AttentionSizes sizes = attention_sizes(p, plan);
  const BlockOps& ops = block_ops();
  const int64_t num_tasks = plan.tiles.size() * p.num_kv_heads;
  const bool has_runs = plan.num_items > num_tasks;
  const int64_t num_workers = std::min(num_threads, plan.num_items);
  const Tensor scratch = new_tensor(q, {num_workers, sizes.scratch}, ScalarType::Float);
  const Tensor results =
      new_tensor(q, {has_runs ? plan.num_items : 0, sizes.result}, ScalarType::Float);
  float* scratch_data = scratch.mutable_data_ptr<float>();
  float* results_data = results.mutable_data_ptr<float>();

  // Items differ in length, and a core may be busy elsewhere: workers take the next as they go.
  std::vector<int32_t> item_status(plan.num_items);
  std::atomic<int64_t> next_item{0};
  torch::stable::parallel_for(0, num_workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t i; (i = next_item.fetch_add(1)) < plan.num_items;) {
        item_status[i] = tree_attention_item(p, plan, ops, i, scratch_data + worker * sizes.scratch,
                                             results_data);
      }
    }
  });
  if (has_runs) {
    torch::stable::parallel_for(0, num_tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        tree_attention_merge(p, plan, ops, i / p.num_kv_heads, i % p.num_kv_heads, results_data);
      }
    });
  }
  tree_attention_fill(p, plan);

  for (int64_t i = 0; i < plan.num_items; ++i) {
    const AttentionRequest& request = plan.requests[plan.tile_of(i).request];
    plan.status[request.idx] |= item_status[i];
  }
  for (int64_t b = 0; b < p.num_requests; ++b) p.status.add(b, plan.status[b]);
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CPU, m) {
  m.impl("tree_attention", TORCH_BOX(&tree_attention<run_cpu>));
  m.impl("tree_attention.out", TORCH_BOX(&tree_attention_out<run_cpu>));
}

}  // namespace dflash
