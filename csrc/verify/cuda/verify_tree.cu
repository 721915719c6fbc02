// verify_tree and verify_chain: the launches of rejection verification.

#include "sample/cuda/stages.h"
#include "verify/cuda/launch.h"
#include "verify/cuda/rejection.cuh"
#include "verify/cuda/stages.h"

namespace dflash {
namespace {

constexpr int kLinkBlock = 256;

__global__ void __launch_bounds__(kLinkBlock)
    clear_drafts_kernel(const __grid_constant__ RejectionLaunch c) {
  const int64_t id = int64_t{blockIdx.x} * kLinkBlock + threadIdx.x;
  if (id < c.p.options.vocab_size) c.first_draft_id[id] = -1;
}

__global__ void __launch_bounds__(kLinkBlock)
    link_drafts_kernel(const __grid_constant__ RejectionLaunch c) {
  const int64_t draft_id = int64_t{blockIdx.x} * kLinkBlock + threadIdx.x;
  if (draft_id >= c.p.draft_vocab_size) return;
  const int64_t id = target_id(c.p, draft_id);
  if (id < 0) return;
  c.next_draft_id[draft_id] = atomicExch(c.first_draft_id + id, static_cast<int32_t>(draft_id));
}

cudaError_t launch_link_drafts(const RejectionLaunch& c, cudaStream_t stream) {
  const auto ctas = [](int64_t count) { return (count + kLinkBlock - 1) / kLinkBlock; };
  if (c.p.options.vocab_size == 0 || c.p.draft_vocab_size == 0) return cudaSuccess;
  clear_drafts_kernel<<<ctas(c.p.options.vocab_size), kLinkBlock, 0, stream>>>(c);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  link_drafts_kernel<<<ctas(c.p.draft_vocab_size), kLinkBlock, 0, stream>>>(c);
  return cudaGetLastError();
}

cudaError_t launch_rejection(const VerifyTreeParams& p, bool is_chain, void* workspace,
                             cudaStream_t stream) {
  const RejectionPlan plan = plan_rejection(p);
  char* bytes = static_cast<char*>(workspace);
  SampleLogitsParams logits{};
  logits.logits = p.logits;
  logits.options = p.options;
  logits.sampling = p.sampling;
  const bool has_logits = static_cast<bool>(p.logits);
  const RejectionLaunch c{p,
                          is_chain,
                          sample_launch(logits, true, workspace),
                          reinterpret_cast<TargetRow*>(bytes + plan.rows),
                          reinterpret_cast<Listed*>(bytes + plan.listed),
                          has_logits ? nullptr : reinterpret_cast<Recorded*>(bytes + plan.recorded),
                          reinterpret_cast<TreeNode*>(bytes + plan.nodes),
                          reinterpret_cast<DrawTask*>(bytes + plan.tasks),
                          reinterpret_cast<float*>(bytes + plan.draft_sums),
                          plan.num_draft_tiles,
                          plan.list_width,
                          reinterpret_cast<int32_t*>(bytes + plan.first_draft_id),
                          reinterpret_cast<int32_t*>(bytes + plan.next_draft_id)};
  const bool has_rows = p.options.num_rows > 0, has_requests = p.sampling.num_requests > 0;
  cudaError_t error = cudaSuccess;
  const auto then = [&](bool is_asked,
                        cudaError_t (*launch)(const RejectionLaunch&, cudaStream_t)) {
    if (is_asked && error == cudaSuccess) error = launch(c, stream);
  };
  if (has_rows && has_logits) error = launch_sample_scan(c.scan, stream);
  then(plan.num_draft_ids > 0, launch_link_drafts);
  then(has_rows && plan.num_draft_tiles > 0 && reads_draft_law(p.rule), launch_draft_sums);
  then(has_rows, launch_target_rows);
  then(has_rows && has_requests && c.draws_every_row(), launch_draw);
  then(has_requests, launch_walk);
  then(has_rows && has_requests && !c.draws_every_row(), launch_draw);
  return error;
}

}  // namespace

cudaError_t launch_verify_tree(const VerifyTreeParams& p, void* workspace, cudaStream_t stream) {
  return launch_rejection(p, false, workspace, stream);
}

cudaError_t launch_verify_chain(const VerifyChainParams& p, void* workspace, cudaStream_t stream) {
  const VerifyTreeParams tree{p,    {},   p.is_block ? TreeRule::kTraversal : TreeRule::kRecursive,
                              true, 0.0f, 0.0f};
  return launch_rejection(tree, true, workspace, stream);
}

}  // namespace dflash
