#include "core/parallel.h"

#include <algorithm>
#include <exception>
#include <thread>

namespace ptxrun {
namespace {

constexpr uint64_t kLeastClusters = 4;  // of a share: less is not worth a thread

bool has(const std::vector<std::string>& parts, std::initializer_list<const char*> any) {
  return std::ranges::any_of(
      any, [&](const char* part) { return std::ranges::find(parts, part) != parts.end(); });
}

size_t mentions(const Function& function, const std::string& name) {
  size_t count = 0;
  const auto look = [&](auto&& self, const Operand& o) -> void {
    count += o.name == name || o.second == name ? 1 : 0;
    for (const Operand& item : o.items) self(self, item);
  };
  for (const Statement& s : function.statements) {
    count += s.predicate == name ? 1 : 0;
    for (const Operand& o : s.operands) look(look, o);
  }
  return count;
}

// Integer sums, extremes and bits whose old value nobody looks at come out the same in any order.
bool is_free_of_order(const Function& function, const Statement& s,
                      const std::vector<std::string>& parts) {
  const bool is_result_used =
      parts[0] == "atom" && s.operands[0].name != "_" && mentions(function, s.operands[0].name) > 1;
  return !is_result_used && !type_named(parts.back()).is_float() &&
         has(parts, {"add", "min", "max", "and", "or", "xor"}) &&
         !has(parts, {"acquire", "release", "acq_rel"});
}

// The counters, reports and words of one more share.
void add(Grid& sum, Grid& share) {
  for (size_t i = 0; i < sum.counters.size(); ++i) sum.counters[i] += share.counters[i];
  sum.num_instructions += share.num_instructions;
  sum.num_matrix += share.num_matrix;
  sum.is_stopped |= share.is_stopped;
  if (sum.options.checks) sum.touched.compare(sum, share.touched);
  for (auto& [where, report] : share.reports) {
    const auto [found, is_new] = sum.reports.try_emplace(where, report);
    if (!is_new) found->second.count += report.count;
  }
  sum.touched.merge(std::move(share.touched));
  sum.most_in_flight = std::max(sum.most_in_flight, share.most_in_flight);
  for (auto& [base, footprint] : share.footprints) {
    const auto [found, is_new] = sum.footprints.try_emplace(base, footprint);
    if (!is_new) found->second += footprint;
  }
}

}  // namespace

bool is_divisible(const Function& function) {
  return std::ranges::none_of(function.statements, [&](const Statement& s) {
    const std::vector<std::string> parts = split(s.opcode);
    const bool is_shared = parts.size() > 1 && s.opcode.find(".shared") != std::string::npos;
    const bool is_atomic = parts[0] == "atom" || parts[0] == "red";
    if (is_atomic) return !is_shared && !is_free_of_order(function, s, parts);
    if (parts[0] == "ld" || parts[0] == "st") {
      return !is_shared && has(parts, {"volatile", "relaxed", "acquire", "release", "mmio"});
    }
    if (parts[0] == "fence" || parts[0] == "membar") return has(parts, {"gpu", "sys", "gl"});
    return parts[0] == "call" || s.opcode.starts_with("cp.reduce");
  });
}

std::unique_ptr<Grid> run_launch(const Module& module, const Kernel& kernel, Memory& memory,
                                 const Launch& launch, const Options& options,
                                 const void* parameters,
                                 const std::shared_ptr<const GlobalShadow>& before) {
  const uint64_t most = launch.num_ctas() / launch.cluster_size() / kLeastClusters;
  const uint64_t count = kernel.is_divisible ? std::clamp<uint64_t>(most, 1, options.threads) : 1;
  std::vector<std::unique_ptr<Grid>> shares(count);
  for (uint64_t i = 0; i < count; ++i) {
    shares[i] = std::make_unique<Grid>(module, kernel, memory, launch, options, parameters);
    shares[i]->before = before;
    shares[i]->share = i;
    shares[i]->num_shares = count;
  }
  std::vector<std::exception_ptr> failures(count);
  const auto run = [&](uint64_t i) {
    try {
      shares[i]->run();
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (uint64_t i = 1; i < count; ++i) threads.emplace_back(run, i);
    run(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  for (uint64_t i = 1; i < count; ++i) add(*shares[0], *shares[i]);
  return std::move(shares[0]);
}

}  // namespace ptxrun
