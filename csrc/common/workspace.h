// Bytes of workspace per op, from upper bounds that the host knows.
#pragma once

#include <cstdint>
#include <string_view>

#include "lm_head/plan.h"

namespace dflash {

struct WorkspaceBounds {
  int64_t max_rows;
  int64_t max_requests;
  int64_t vocab_size;
  int64_t max_fallback_rows;
};

struct WorkspaceEntry {
  std::string_view op;
  int64_t (*bytes)(const WorkspaceBounds& bounds, bool is_cuda);
};

constexpr int64_t head_fallback(const WorkspaceBounds& b, bool) {
  return fallback_bytes(b.max_fallback_rows, b.vocab_size);
}

// One line per op that takes a workspace.
inline constexpr WorkspaceEntry kWorkspaces[] = {
    {"verify_gemm", [](const WorkspaceBounds&, bool) -> int64_t { return 0; }},
    {"lm_head_sample", head_fallback},
    {"lm_head_verify", head_fallback},
};

}  // namespace dflash
