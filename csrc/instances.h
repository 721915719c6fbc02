// Every instantiation of the CUDA kernels: what each costs in compile time and in the library. The
// test of registers and spills compiles them and counts.
#pragma once

#include "gemm/cuda/plan.h"
#include "gemm/cuda/plan_sm90.h"
#include "gemm/cuda/quant_plan.h"
#include "lm_head/cuda/plan.h"

namespace dflash {

struct KernelInstances {
  const char* kernel;
  int count;
};

inline constexpr int kFloatTypes = 3;  // bf16, fp16, fp32
inline constexpr int kWgmmaTypes = 2;  // bf16, fp16

inline constexpr KernelInstances kInstances[] = {
    {"accept_match_kernel", 1},
    {"commit_kernel", 1},
    {"prepare_block_kernel", 1},
    {"tree_metadata_kernel", 1},
    {"tree_to_paths_kernel", 1},
    {"tree_from_retrieve_kernel", 1},
    {"tree_from_mask_kernel", 1},
    {"build_tree_kernel", 1},
    {"pack_trees_kernel", 1},
    {"compact_kv_kernel", 1},
    {"pack_context_kernel", 1},
    {"give_status_kernel", 1},
    {"commit_state_kernel", 1},
    {"list_pages_kernel", 1},
    {"release_pages_kernel", 1},
    {"block_conv_kernel", 1},
    {"select_path_kernel", kFloatTypes},
    {"sample_scan_kernel", 1},
    {"sample_finish_kernel", 1},
    {"sample_candidates_kernel", 1},
    {"clear_drafts_kernel", 1},
    {"link_drafts_kernel", 1},
    {"draft_sums_kernel", 1},
    {"target_rows_kernel", 1},
    {"walk_kernel", 1},
    {"draw_scan_kernel", 1},
    {"draw_finish_kernel", 1},
    {"rope_append_kv_kernel", 1},
    {"rope_append_layers_kernel", 1},
    {"merge_states_kernel", kFloatTypes},
    {"plan_tiles_kernel", kFloatTypes},
    {"tree_attention_kernel", kFloatTypes * 3},       // by the head dimension: 64, 128, 256
    {"tree_attention_sm90_kernel", kWgmmaTypes * 2},  // 128, 256
    {"merge_runs_kernel", kFloatTypes},
    {"pack_weight_kernel", 2},  // by the size of an element
    {"unpack_kernel", 2},
    {"pack_quant_kernel", 1},
    {"unpack_codes_kernel", 1},
    {"rmsnorm_kernel", kFloatTypes},
    {"sum_shards_kernel", 1},
    {"verify_gemm_kernel", (kFloatTypes - 1) * kNumGemmShapes + int{Fp32GemmShapes::size()}},
    {"verify_gemm_sm90_kernel", kWgmmaTypes * kNumWgmmaShapes},
    {"quant_rows_kernel", 1},
    {"verify_gemm_quant_kernel", kNumQuantShapes},
    {"head_rows_kernel", kFloatTypes},
    {"head_scan_kernel", kFloatTypes * kNumHeadShapes + 1},  // and of a quantised head
    {"head_scan_sm90_kernel", kWgmmaTypes * kNumHeadShapes},
    {"head_topk_kernel", 1},
    {"head_sample_kernel", 1},
    {"head_draw_kernel", 1},
    {"head_given_kernel", kFloatTypes + 1},
    {"head_given_sm90_kernel", kWgmmaTypes},
    {"head_gather_kernel", 1},
    {"head_verify_kernel", 1},
    {"merge_shards_kernel", 1},
};

constexpr int num_instances() {
  int sum = 0;
  for (const KernelInstances& kernel : kInstances) sum += kernel.count;
  return sum;
}
static_assert(num_instances() <= 120);

}  // namespace dflash
