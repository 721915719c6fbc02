#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "common/workspace.h"

namespace dflash {

static int64_t workspace_bytes(std::string op, std::string device, int64_t max_rows,
                               int64_t max_requests, int64_t vocab_size,
                               int64_t max_fallback_rows) {
  const auto fail = [](const std::string& text) {
    throw std::runtime_error("workspace_bytes: " + text);
  };
  const std::string type = device.substr(0, device.find(':'));
  if (type != "cpu" && type != "cuda") fail("device must be one of cpu, cuda, got " + device);
  const std::pair<const char*, int64_t> bounds[]{{"max_rows", max_rows},
                                                 {"max_requests", max_requests},
                                                 {"vocab_size", vocab_size},
                                                 {"max_fallback_rows", max_fallback_rows}};
  for (const auto& [name, value] : bounds) {
    if (value < 0) fail(std::string(name) + " must be at least 0, got " + std::to_string(value));
  }
  std::string names;
  for (const WorkspaceEntry& entry : kWorkspaces) {
    if (entry.op == op) {
      return entry.bytes({max_rows, max_requests, vocab_size, max_fallback_rows}, type == "cuda");
    }
    names += (names.empty() ? "" : ", ") + std::string(entry.op);
  }
  fail("op must be one of " + names + ", got " + op);
  return 0;
}

STABLE_TORCH_LIBRARY_IMPL(dflash, CompositeExplicitAutograd, m) {
  m.impl("workspace_bytes", TORCH_BOX(&workspace_bytes));
}

}  // namespace dflash
