// cp.async: copies that land some time between their issue and the wait for their group.

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/async.h"
#include "core/decode.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

void land(Warp& w, const AsyncCopy& copy, int lane) {
  uint8_t* to = w.cta->shared.data() + copy.destinations[lane];
  if (copy.bytes == 16 && copy.source_bytes[lane] == 16) {
    std::memcpy(to, copy.sources[lane], 16);
    return;
  }
  std::memset(to, 0, copy.bytes);
  if (copy.source_bytes[lane] > 0) std::memcpy(to, copy.sources[lane], copy.source_bytes[lane]);
}

// Bytes of memory that they have read.
uint64_t settle(Warp& w, const std::vector<AsyncCopy>& copies, uint32_t agent, uint32_t clock) {
  uint64_t bytes = 0;
  for (const AsyncCopy& copy : copies) {
    for_lanes(copy.lanes & ~copy.landed, [&](int lane) { land(w, copy, lane); });
    bytes += copy.bytes * static_cast<uint64_t>(std::popcount(copy.reads));
    if (!w.cta->shadow.is_on()) continue;
    for_lanes(copy.lanes, [&](int lane) {
      w.cta->shadow.land(w, agent, clock, copy.destinations[lane], copy.bytes, lane, copy.index);
    });
  }
  return bytes;
}

// How many bytes each lane copies; the rest of the destination is zero.
void source_bytes_of(Warp& w, const Instruction& in, uint8_t* counts) {
  const uint32_t ignored = in.flag ? w.bits(in.refs[2]) : 0;
  const bool has_count = !in.flag && in.refs.size() > 2;
  for (int i = 0; i < kLanes; ++i) {
    uint64_t count = (ignored >> i & 1) != 0 ? 0 : in.bytes;
    if (has_count) count = std::min<uint64_t>(w.value(in.refs[2], i), in.bytes);
    counts[i] = static_cast<uint8_t>(count);
  }
}

// refs: destination, source, source bytes (or the predicate that ignores the source)
void copy(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t to[kLanes], from[kLanes];
  addresses_of(w, in, in.refs[0], to);
  const auto offset = static_cast<uint64_t>(in.table[0]);
  for (int i = 0; i < kLanes; ++i) {
    to[i] &= 0xffffffff;
    from[i] = w.value(in.refs[1], i) + offset;
  }
  AsyncCopy& c = w.copies.emplace_back();
  c.index = in.index;
  c.bytes = in.bytes;
  source_bytes_of(w, in, c.source_bytes);
  uint32_t reads = 0;
  bool is_whole = true;
  for_lanes(mask, [&](int i) {
    if (c.source_bytes[i] > 0) reads |= 1u << i;
    is_whole &= c.source_bytes[i] == 0 || c.source_bytes[i] == in.bytes;
  });
  const uint8_t* all_from = nullptr;
  if (is_whole && reads != 0) {
    all_from = reach_all(w, in, Space::kGlobal, from, in.bytes, reads, Touch::kRead);
  }
  const uint8_t* all_to = reach_all(w, in, Space::kShared, to, in.bytes, mask, Touch::kAsync);
  for_lanes(mask, [&](int i) {
    const uint8_t* source = nullptr;
    if (c.source_bytes[i] > 0) {
      source = all_from != nullptr ? all_from + from[i]
                                   : reach(w, in, Space::kGlobal, from[i], in.bytes, i,
                                           Touch::kRead, c.source_bytes[i]);
      if (source == nullptr) return;
    }
    if (all_to == nullptr && !reach(w, in, Space::kShared, to[i], in.bytes, i, Touch::kAsync)) {
      return;
    }
    c.sources[i] = source;
    c.destinations[i] = static_cast<uint32_t>(to[i]);
    c.lanes |= 1u << i;
    if (lands_early(*w.cta->grid)) {
      land(w, c, i);
      c.landed |= 1u << i;
    }
  });
  c.reads = c.lanes & reads;
  count_access(w, in, Space::kGlobal, from, in.bytes, reads, Touch::kRead);
  count_waves(w, in, to, in.bytes, mask);
  const auto asked = static_cast<uint64_t>(std::popcount(c.reads)) * in.bytes;
  count_issued(w.in_flight_bytes, w.most_in_flight, asked);
}

void commit(Warp& w, const Instruction&, uint32_t) {
  w.groups.push_back(std::exchange(w.copies, {}));
}

void wait(Warp& w, const Instruction& in, uint32_t) {
  if (in.flag) commit(w, in, 0);
  wait_for_groups(w, static_cast<size_t>(in.value));
}

// The copies so far of the lanes of the mask, which no group waits for any more.
std::vector<AsyncCopy> take_copies(Warp& w, uint32_t mask) {
  std::vector<AsyncCopy> taken;
  const auto take = [&](std::vector<AsyncCopy>& copies) {
    for (AsyncCopy& c : copies) {
      AsyncCopy& ours = taken.emplace_back(c);
      ours.lanes &= mask;
      ours.reads &= mask;
      c.lanes &= ~mask;
      c.reads &= ~mask;
    }
    std::erase_if(copies, [](const AsyncCopy& c) { return c.lanes == 0; });
  };
  for (std::vector<AsyncCopy>& group : w.groups) take(group);
  take(w.copies);
  return taken;
}

// cp.async.mbarrier.arrive: the lanes arrive once all their copies so far have landed, with what
// they have seen by now.
void arrive_after_copies(Warp& w, const Instruction& in, uint32_t mask) {
  const std::vector<Place> places = arrivals_of(w, in, mask);
  if (places.empty()) return;
  const auto agent = static_cast<uint32_t>(3 * w.cta->warps.size()) + 1 + w.id;
  View seen = w.view;
  seen.clocks[agent] = ++w.copy_clock;
  w.cta->grid->issue([&w, &in, places, agent, seen, copies = take_copies(w, mask)] {
    arrive_with(w, in, places, seen, settle(w, copies, agent, seen.clocks[agent]));
  });
  ++w.view.clocks[w.id];
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
    d.address(d.operand(0));
    const int64_t offset = out.value;
    d.address(d.operand(1));
    out.table.push_back(std::exchange(out.value, offset));
    out.bytes = static_cast<uint8_t>(d.integer(2));
    d.touches(Space::kShared, out.bytes);
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

bool lands_early(Grid& grid) {
  switch (grid.options.landing) {
    case Landing::kEarliest: return true;
    case Landing::kRandom: return grid.random() % 2 == 0;
    default: return false;
  }
}

void wait_for_groups(Warp& w, size_t may_pend) {
  while (w.groups.size() > may_pend) {
    w.in_flight_bytes -= settle(w, w.groups.front(), w.id, w.view.clocks[w.id]);
    w.groups.pop_front();
  }
}

void finish_copies(Warp& w) {
  commit(w, {}, 0);
  wait_for_groups(w, 0);
}

void add_copy(InstructionTable& table) { table["cp"] = decode_copy; }

}  // namespace ptxrun
