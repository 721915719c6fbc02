// Bulk stores between their issue and the waits for their group: first shared memory is read, and
// may then be written again; then global memory is written.

#include <algorithm>
#include <utility>

#include "core/async.h"
#include "core/grid.h"

namespace ptxrun {

void issue_store(Warp& w, std::span<const uint8_t> from, uint32_t clock,
                 std::function<void(const uint8_t*)> write) {
  w.bulk.clock = std::max(w.bulk.clock, clock);
  if (lands_early(*w.cta->grid)) std::exchange(write, nullptr)(from.data());
  w.bulk.stores.push_back({from, {}, std::move(write)});
}

void commit_bulk(Warp& w, const Instruction&, uint32_t) {
  w.bulk_groups.push_back(std::exchange(w.bulk, {}));
}

void wait_for_bulk(Warp& w, size_t may_pend, bool until_read) {
  const size_t reader = w.cta->warps.size() + 1 + w.id;
  while (w.bulk_groups.size() > may_pend) {
    BulkGroup group = std::move(w.bulk_groups.front());
    w.bulk_groups.pop_front();
    for (BulkStore& s : group.stores) s.bytes.assign(s.from.begin(), s.from.end());
    w.view.clocks[reader] = std::max(w.view.clocks[reader], group.clock);
    w.bulk_writes.push_back(std::move(group));
  }
  if (until_read) return;
  while (w.bulk_groups.size() + w.bulk_writes.size() > may_pend) {
    for (const BulkStore& s : w.bulk_writes.front().stores) {
      if (s.write) s.write(s.bytes.data());
    }
    w.bulk_writes.pop_front();
  }
}

void finish_bulk(Warp& w) {
  commit_bulk(w, {}, 0);
  const bool reads = std::ranges::any_of(
      w.bulk_groups, [](const BulkGroup& group) { return !group.stores.empty(); });
  if (reads) {
    const auto last = static_cast<uint32_t>(w.cta->grid->kernel.code.size() - 1);
    w.cta->grid->report(w, "bulk copy not waited for", last, 0,
                        "the warp ends while a bulk store may still read its shared memory");
  }
  wait_for_bulk(w, 0, false);
}

}  // namespace ptxrun
