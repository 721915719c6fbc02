// cp.async: copies that land some time between their issue and the wait for their group.

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/async.h"
#include "core/decode.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

void land(Warp& w, const AsyncCopy& copy) {
  uint8_t* to = w.cta->shared.data() + copy.destination;
  std::memset(to, 0, copy.bytes);
  if (copy.source_bytes > 0) std::memcpy(to, copy.source, copy.source_bytes);
}

void settle(Warp& w, const std::vector<AsyncCopy>& copies) {
  for (const AsyncCopy& copy : copies) {
    if (!copy.has_landed) land(w, copy);
    if (copy.source_bytes > 0) w.in_flight_bytes -= copy.bytes;
    if (w.cta->shadow.is_on()) {
      w.cta->shadow.land(w, copy.destination, copy.bytes, copy.lane, copy.index);
    }
  }
}

bool lands_early(Grid& grid) {
  switch (grid.options.landing) {
    case Landing::kEarliest: return true;
    case Landing::kRandom: return grid.random() % 2 == 0;
    default: return false;
  }
}

// refs: destination, source, source bytes (or the predicate that ignores the source)
void copy(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t to[kLanes], from[kLanes];
  const auto offset = static_cast<uint64_t>(in.table[0]);
  for (int i = 0; i < kLanes; ++i) {
    to[i] = w.value(in.refs[0], i) + static_cast<uint64_t>(in.value);
    from[i] = w.value(in.refs[1], i) + offset;
  }
  const uint32_t ignored = in.flag ? w.bits(in.refs[2]) : 0;
  uint32_t reads = 0;
  for_lanes(mask, [&](int i) {
    uint64_t count = in.bytes;
    if (in.flag) {
      count = (ignored >> i & 1) != 0 ? 0 : count;
    } else if (in.refs.size() > 2) {
      count = std::min<uint64_t>(w.value(in.refs[2], i), in.bytes);
    }
    if (count > 0) reads |= 1u << i;
    const uint8_t* source = nullptr;
    if (count > 0) {
      source = reach(w, in, Space::kGlobal, from[i], in.bytes, i, Touch::kRead, count);
      if (source == nullptr) return;
    }
    if (!reach(w, in, Space::kShared, to[i] & 0xffffffff, in.bytes, i, Touch::kAsync)) return;
    AsyncCopy c{source,
                static_cast<uint32_t>(to[i]),
                in.bytes,
                static_cast<uint8_t>(count),
                static_cast<uint8_t>(i),
                false,
                in.index};
    if (lands_early(*w.cta->grid)) {
      land(w, c);
      c.has_landed = true;
    }
    w.copies.push_back(c);
  });
  count_access(w, in, Space::kGlobal, from, in.bytes, reads, Touch::kRead);
  count_waves(w, in, to, in.bytes, mask);
  const auto asked = static_cast<uint64_t>(std::popcount(reads)) * in.bytes;
  count_issued(w.in_flight_bytes, w.most_in_flight, asked);
}

void commit(Warp& w, const Instruction&, uint32_t) {
  w.groups.push_back(std::exchange(w.copies, {}));
}

void wait(Warp& w, const Instruction& in, uint32_t) {
  if (in.flag) commit(w, in, 0);
  wait_for_groups(w, static_cast<size_t>(in.value));
}

// cp.async.mbarrier.arrive: arrives once all the lane's copies so far have landed. The pending
// count grows first, unless .noinc. Landing at once is a legal moment, and the one a wait may rely
// on.
void arrive_after_copies(Warp& w, const Instruction& in, uint32_t mask) {
  std::vector<AsyncCopy> landed;
  const auto take = [&](std::vector<AsyncCopy>& copies) {
    std::erase_if(copies, [&](const AsyncCopy& c) {
      const bool is_ours = (mask >> c.lane & 1) != 0;
      if (is_ours) landed.push_back(c);
      return is_ours;
    });
  };
  for (std::vector<AsyncCopy>& group : w.groups) take(group);
  take(w.copies);
  settle(w, landed);
  if (in.flag) arrive_at(w, in, mask);
}

void decode_copy(Decoder& d) {
  Instruction& out = d.out();
  if (d.has("bulk")) return decode_bulk(d);
  if (d.parts()[1] != "async") return;
  if (d.has("commit_group")) {
    out.run = commit;
  } else if (d.has("wait_group") || d.has("wait_all")) {
    out.flag = d.has("wait_all");
    out.value = out.flag ? 0 : d.integer(0);
    out.run = wait;
  } else if (d.has("mbarrier")) {
    d.address(d.operand(0));
    out.flag = d.has("noinc");
    out.run = arrive_after_copies;
  } else if (d.has("ca") || d.has("cg")) {
    d.address(d.operand(1));
    out.table.push_back(out.value);
    d.address(d.operand(0));
    std::swap(out.refs[0], out.refs[1]);
    out.bytes = static_cast<uint8_t>(d.integer(2));
    const bool has_policy = d.has("L2::cache_hint");
    if (d.count() > (has_policy ? 4u : 3u)) {
      const Operand& last = d.operand(3);
      out.flag = d.register_type(last.name).kind == Kind::kPred;
      out.flag ? d.predicate_in(last) : d.any(last, {Kind::kUnsigned, 4});
    }
    out.run = copy;
  }
}

}  // namespace

void wait_for_groups(Warp& w, size_t may_pend) {
  while (w.groups.size() > may_pend) {
    settle(w, w.groups.front());
    w.groups.pop_front();
  }
}

void wait_for_bulk(Warp& w, size_t may_pend) {
  const size_t reader = w.cta->warps.size() + 1 + w.id;
  while (w.bulk_groups.size() > may_pend) {
    for (const auto& store : w.bulk_groups.front().stores) store();
    w.view.clocks[reader] = std::max(w.view.clocks[reader], w.bulk_groups.front().clock);
    w.bulk_groups.pop_front();
  }
}

void finish_copies(Warp& w) {
  wait_for_groups(w, 0);
  settle(w, std::exchange(w.copies, {}));
  const bool reads = std::ranges::any_of(
      w.bulk_groups, [](const BulkGroup& group) { return !group.stores.empty(); });
  if (reads || !w.bulk.stores.empty()) {
    const auto last = static_cast<uint32_t>(w.cta->grid->kernel.code.size() - 1);
    w.cta->grid->report(w, "bulk copy not waited for", last, 0,
                        "the warp ends while a bulk store may still read its shared memory");
  }
  wait_for_bulk(w, 0);
}

void add_copy(InstructionTable& table) { table["cp"] = decode_copy; }

}  // namespace ptxrun
