// mbarrier: a count of arrivals and of bytes, in shared memory; clusters.

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/async.h"
#include "core/decode.h"

namespace ptxrun {
namespace {

// How the 64 bits are used here; PTX keeps them opaque.
struct Mbarrier {
  uint64_t phase : 1;
  uint64_t pending : 20;
  uint64_t count : 20;
  int64_t transactions : 23;
};
static_assert(sizeof(Mbarrier) == 8);

Mbarrier& at(const Place& place) {
  return *reinterpret_cast<Mbarrier*>(place.cta->shared.data() + place.offset);
}

void finish_phase(const Place& place) {
  Mbarrier& m = at(place);
  if (m.pending != 0 || m.transactions != 0) return;
  m.phase ^= 1;
  m.pending = m.count;
  MbarrierViews& views = place.cta->mbarriers[place.offset];
  views.complete = std::exchange(views.arriving, {});
}

Place barrier_of(Warp& w, const Instruction& in, int lane) {
  const uint64_t address = w.value(in.refs[0], lane) + static_cast<uint64_t>(in.value);
  if (address % 8 != 0) {
    w.cta->grid->report(w, "misaligned", in.index, lane, "mbarrier");
    return {nullptr, 0};
  }
  return place_of(w, in, address, 8, lane);
}

void arrive_once(Warp& w, const Instruction& in, int lane, uint32_t count, uint32_t expected) {
  const Place place = barrier_of(w, in, lane);
  if (place.cta == nullptr) return;
  Mbarrier& m = at(place);
  m.transactions += expected;
  if (count > m.pending) {
    w.cta->grid->report(w, "mbarrier", in.index, lane,
                        std::to_string(count) + " arrivals, " + std::to_string(m.pending) +
                            " pending in this phase");
    return;
  }
  m.pending -= count;
  View& arriving = place.cta->mbarriers[place.offset].arriving;
  place.cta == w.cta ? join(arriving, w.view) : join(arriving.others, known_to(w));
  ++w.view.clocks[w.id];
  finish_phase(place);
}

// refs: address, state, count or bytes
void initialise(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const Place place = barrier_of(w, in, lane);
    const uint64_t count = w.value(in.refs[2], lane);
    if (place.cta == nullptr) return;
    if (count == 0 || count >= 1 << 20) {
      w.cta->grid->report(w, "mbarrier", in.index, lane, "count " + std::to_string(count));
      return;
    }
    at(place) = {0, count, count, 0};
    place.cta->mbarriers[place.offset] = {};
  });
}

enum Action : uint8_t { kArrive, kArriveExpect, kExpect, kComplete, kDrop };

void arrive_or_expect(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const auto amount = static_cast<uint32_t>(w.value(in.refs[2], lane));
    const Place place = barrier_of(w, in, lane);
    if (place.cta == nullptr) return;
    const uint64_t state = std::bit_cast<uint64_t>(at(place));
    switch (in.mode) {
      case kArrive: arrive_once(w, in, lane, amount, 0); break;
      case kArriveExpect: arrive_once(w, in, lane, 1, amount); break;
      case kExpect: at(place).transactions += amount; break;
      case kDrop:
        at(place).count -= amount;
        arrive_once(w, in, lane, amount, 0);
        break;
      default: at(place).transactions -= amount; finish_phase(place);
    }
    if (in.refs[1].offset != 0) w.lanes<uint64_t>(in.refs[1])[lane] = state;
  });
}

// refs: address, result, parity or state. A failed wait ends the warp's turn.
void wait(Warp& w, const Instruction& in, uint32_t mask) {
  uint32_t complete = 0;
  const bool fails = w.cta->grid->options.landing == Landing::kRandom && !in.flag &&
                     w.cta->grid->random() % 4 == 0;  // try_wait may, for no reason
  for_lanes(mask, [&](int lane) {
    const Place place = barrier_of(w, in, lane);
    if (place.cta == nullptr) return;
    const uint64_t phase = in.mode == 1 ? w.value(in.refs[2], lane) & 1
                                        : std::bit_cast<Mbarrier>(w.value(in.refs[2], lane)).phase;
    if (at(place).phase == phase || fails) return;
    complete |= 1u << lane;
    MbarrierViews& views = place.cta->mbarriers[place.offset];
    for (const auto& [warp, bytes] : std::exchange(views.copied, {})) {
      place.cta->warps[warp].in_flight_bytes -= bytes;
    }
    join(w.view, views.complete);
  });
  w.set_mask(in.refs[1], complete, mask);
  if (complete != mask) {
    w.park(w.active, w.pc);
    w.is_spinning = w.has_waited = true;
    w.state = WarpState::kYield;
  }
}

void decode_mbarrier(Decoder& d) {
  const std::string& what = d.parts()[1];
  Instruction& out = d.out();
  if (what == "inval") {
    d.address(d.operand(0));
    out.run = [](Warp&, const Instruction&, uint32_t) {};
    return;
  }
  if (what == "try_wait" || what == "test_wait") {
    d.address(d.operand(1));
    d.predicate_out(d.operand(0).name);
    const bool has_parity = d.has("parity");
    d.source(2, {Kind::kBits, static_cast<uint8_t>(has_parity ? 4 : 8)});
    out.mode = has_parity ? 1 : 0;
    out.flag = what == "test_wait";
    out.run = wait;
    return;
  }
  const bool has_state = what == "arrive" || what == "arrive_drop";
  const size_t address = has_state ? 1 : 0;
  d.address(d.operand(address));
  has_state ? d.ref(d.operand(0), {Kind::kBits, 8}, false) : d.unused();
  Operand one;
  one.form = Operand::Form::kInteger;
  one.bits = 1;
  const bool has_amount = d.count() > address + 1;
  d.ref(has_amount ? d.operand(address + 1) : one, {Kind::kUnsigned, 4}, false);
  if (what == "init") {
    out.run = initialise;
    return;
  }
  if (what == "arrive") out.mode = d.has("expect_tx") ? kArriveExpect : kArrive;
  if (what == "arrive_drop") out.mode = kDrop;
  if (what == "expect_tx") out.mode = kExpect;
  if (what == "complete_tx") out.mode = kComplete;
  if (!d.has("noComplete")) out.run = arrive_or_expect;
}

// ---- clusters
void map_address(Warp& w, const Instruction& in, uint32_t mask) {
  uint64_t result[kLanes];
  const uint64_t window = in.flag ? kSharedWindow : 0;
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t offset = (w.value(in.refs[1], i) - window) % kSharedStride;
    result[i] = window + (w.value(in.refs[2], i) + 1) * kSharedStride + offset;
  }
  set_any(w, in.refs[0], mask, [&](int i) { return result[i]; });
}

void cta_rank(Warp& w, const Instruction& in, uint32_t mask) {
  uint32_t result[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t address = w.value(in.refs[1], i) - (in.flag ? kSharedWindow : 0);
    const uint64_t field = address / kSharedStride;
    result[i] = field == 0 ? w.cta->rank : static_cast<uint32_t>(field - 1);
  }
  set_lanes<uint32_t>(w, in.refs[0], mask, [&](int i) { return result[i]; });
}

uint32_t live_warps(const Cta& cta) {
  uint32_t count = 0;
  for (const Cta* peer : cta.peers) {
    count += static_cast<uint32_t>(peer->warps.size()) - peer->done;
  }
  return count;
}

void finish_cluster_phase(Cta& any) {
  Cta& first = *any.peers[0];
  if (first.cluster_arrived == 0 || first.cluster_arrived < live_warps(any)) return;
  first.cluster_arrived = 0;
  ++first.cluster_phase;
  first.cluster_released = first.cluster_arriving;
}

void cluster_arrive(Warp& w, const Instruction& in, uint32_t mask) {
  if (mask != w.live) {
    w.cta->grid->report(w, "divergent barrier", in.index, std::countr_zero(mask),
                        "only some lanes of the warp are at barrier.cluster");
  }
  Cta& first = *w.cta->peers[0];
  w.cluster_phase = first.cluster_phase;
  ++first.cluster_arrived;
  if (!in.flag) {  // else .relaxed
    join(first.cluster_arriving, known_to(w));
    ++w.view.clocks[w.id];
  }
  finish_cluster_phase(*w.cta);
}

void cluster_wait(Warp& w, const Instruction&, uint32_t) {
  w.park(w.active, w.pc);
  w.state = WarpState::kClusterBarrier;
  pass_cluster_barrier(w);
}

}  // namespace

void pass_cluster_barrier(Warp& w) {
  if (w.cta->peers[0]->cluster_phase == w.cluster_phase) return;
  learn(w, w.cta->peers[0]->cluster_released);
  w.state = WarpState::kYield;
}

void leave_cluster_barrier(Cta& cta) { finish_cluster_phase(cta); }

Place place_of(Warp& w, const Instruction& in, uint64_t address, uint64_t bytes, int lane) {
  if (address >= kSharedWindow) address -= kSharedWindow;
  const uint64_t field = address / kSharedStride, offset = address % kSharedStride;
  Cta* cta = field == 0 ? w.cta : field <= w.cta->peers.size() ? w.cta->peers[field - 1] : nullptr;
  if (cta == nullptr || offset + bytes > cta->shared.size()) {
    w.cta->grid->report(w, "out of bounds", in.index, lane,
                        "shared byte " + std::to_string(offset) + " of rank " +
                            std::to_string(field == 0 ? w.cta->rank : field - 1));
    return {nullptr, 0};
  }
  if (cta != w.cta && cta->done == cta->warps.size()) {
    w.cta->grid->report(w, "cluster", in.index, lane,
                        "shared memory of rank " + std::to_string(field - 1) + ", which is over");
    return {nullptr, 0};
  }
  return {cta, static_cast<uint32_t>(offset)};
}

void arrive_at(Warp& w, const Instruction& in, uint32_t mask, uint64_t copied) {
  const Place place = barrier_of(w, in, std::countr_zero(mask));
  if (place.cta != nullptr) place.cta->mbarriers[place.offset].copied.emplace_back(w.id, copied);
  for_lanes(mask, [&](int lane) { arrive_once(w, in, lane, 1, 0); });
}

void complete_transactions(Warp& w, const Instruction& in, Cta& cta, uint32_t offset,
                           uint32_t bytes) {
  const Place place{&cta, offset};
  Mbarrier& m = at(place);
  m.transactions -= bytes;
  Clocks& arriving = cta.mbarriers[offset].arriving.clocks;
  const size_t writer = cta.warps.size();
  arriving.resize(std::max(arriving.size(), writer + 1));
  arriving[writer] = std::max(arriving[writer], cta.writer_clock);
  if (m.transactions < -(1 << 20)) {
    w.cta->grid->report(w, "mbarrier", in.index, 0, "bytes that nobody expected");
  }
  finish_phase(place);
}

void decode_cluster_barrier(Decoder& d) {
  d.out().flag = d.has("relaxed");
  d.out().run = d.has("arrive") ? cluster_arrive : cluster_wait;
}

void add_mbarrier(InstructionTable& table) {
  table["mbarrier"] = decode_mbarrier;
  table["mapa"] = [](Decoder& d) {
    d.destination(0, d.type());
    d.any(d.operand(1), d.type());
    d.any(d.operand(2), {Kind::kUnsigned, 4});
    d.out().flag = !d.has("shared::cluster");
    d.out().run = map_address;
  };
  table["getctarank"] = [](Decoder& d) {
    d.destination(0, {Kind::kUnsigned, 4});
    d.any(d.operand(1), d.type());
    d.out().flag = !d.has("shared::cluster");
    d.out().run = cta_rank;
  };
}

}  // namespace ptxrun
