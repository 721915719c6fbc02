// verify_tree and verify_chain: the launches of rejection verification.

#include "sample/cuda/stages.h"
#include "verify/cuda/launch.h"
#include "verify/cuda/rejection.cuh"
#include "verify/cuda/stages.h"

namespace dflash {
namespace {

cudaError_t launch_rejection(const VerifyTreeParams& p, bool is_chain, void* workspace,
                             cudaStream_t stream) {
  const RejectionPlan plan = plan_rejection(p);
  char* bytes = static_cast<char*>(workspace);
  const SampleLogitsParams logits{.logits = p.logits, .options = p.options, .sampling = p.sampling};
  const RejectionLaunch c{p,
                          is_chain,
                          sample_launch(logits, true, workspace),
                          reinterpret_cast<TargetRow*>(bytes + plan.rows),
                          reinterpret_cast<Listed*>(bytes + plan.listed),
                          reinterpret_cast<TreeNode*>(bytes + plan.nodes),
                          reinterpret_cast<DrawTask*>(bytes + plan.tasks),
                          plan.list_width};
  const bool has_rows = p.options.num_rows > 0, has_requests = p.sampling.num_requests > 0;
  cudaError_t error = cudaSuccess;
  const auto then = [&](bool is_asked, cudaError_t (*launch)(const RejectionLaunch&, cudaStream_t)) {
    if (is_asked && error == cudaSuccess) error = launch(c, stream);
  };
  if (has_rows) error = launch_sample_scan(c.scan, stream);
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
  const VerifyTreeParams tree{p,
                              {},
                              p.is_block ? TreeRule::kTraversal : TreeRule::kRecursive,
                              true,
                              0.0f,
                              0.0f};
  return launch_rejection(tree, true, workspace, stream);
}

}  // namespace dflash
