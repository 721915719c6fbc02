// mbarrier: a count of arrivals and of bytes, in shared memory.

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

constexpr int64_t kMostTransactions = 1 << 20;

Mbarrier& at(const Place& place) {
  return *reinterpret_cast<Mbarrier*>(place.cta->shared.data() + place.offset);
}

// Nothing may be under way when it goes, and nothing done that nobody knows of.
void finish_mbarrier(Warp& w, const Place& place) {
  Grid& grid = *w.cta->grid;
  const MbarrierState& state = place.cta->mbarriers[place.offset];
  if (const int64_t bytes = at(place).transactions; bytes != 0) {
    grid.report(w, "mbarrier", state.expected_at, 0,
                "at its end " + std::to_string(bytes) + " bytes are pending at shared byte " +
                    std::to_string(place.offset));
  }
  for (const std::optional<uint32_t>& copy : {state.arriving_copy, state.complete_copy}) {
    if (copy) {
      grid.report(w, "bulk copy not waited for", *copy, 0,
                  "no wait has seen it complete when its mbarrier ends");
    }
  }
}

void finish_phase(const Place& place) {
  Mbarrier& m = at(place);
  if (m.pending != 0 || m.transactions != 0) return;
  m.phase ^= 1;
  m.pending = m.count;
  MbarrierState& state = place.cta->mbarriers[place.offset];
  state.complete = std::exchange(state.arriving, {});
  if (state.arriving_copy) state.complete_copy = std::exchange(state.arriving_copy, {});
}

Place address_of(Warp& w, const Instruction& in, int lane) {
  const uint64_t address = w.value(in.refs[0], lane) + static_cast<uint64_t>(in.value);
  if (address % 8 != 0) {
    w.cta->grid->report(w, "misaligned", in.index, lane, "mbarrier");
    return {nullptr, 0};
  }
  return place_of(w, in, address, 8, lane);
}

bool is_known(const Warp& w, const Place& place, const MbarrierState& state) {
  if (state.fenced_phase && w.cluster_passed > *state.fenced_phase) return true;
  const uint32_t warp = state.initialiser;
  if (place.cta == w.cta) return state.init_clock <= w.view.clocks[warp];
  if (w.view.others == nullptr) return false;
  const auto found = w.view.others->find(place.cta->linear);
  return found != w.view.others->end() && warp < found->second.size() &&
         state.init_clock <= found->second[warp];
}

// Of an instruction that needs one. Null cta: there is none.
Place barrier_of(Warp& w, const Instruction& in, int lane) {
  const Place place = address_of(w, in, lane);
  if (place.cta == nullptr) return place;
  const auto found = place.cta->mbarriers.find(place.offset);
  if (found == place.cta->mbarriers.end()) {
    w.cta->grid->report(w, "mbarrier", in.index, lane,
                        "shared byte " + std::to_string(place.offset) + " is none");
    return {nullptr, 0};
  }
  if (!is_known(w, place, found->second)) {
    w.cta->grid->report(w, "mbarrier", in.index, lane,
                        "initialised by warp " + std::to_string(found->second.initialiser) +
                            ", which nothing orders before this");
  }
  return place;
}

void expect(Warp& w, const Instruction& in, const Place& place, int64_t bytes, int lane) {
  Mbarrier& m = at(place);
  const int64_t sum = m.transactions + bytes;
  if (sum <= -kMostTransactions || sum >= kMostTransactions) {
    return w.cta->grid->report(w, "mbarrier", in.index, lane,
                               std::to_string(sum) + " bytes pending, must be within +-(2^20-1)");
  }
  m.transactions = sum;
  if (bytes > 0) place.cta->mbarriers[place.offset].expected_at = in.index;
}

void arrive(Warp& w, const Instruction& in, const Place& place, int lane, uint32_t count,
            const View& seen) {
  Mbarrier& m = at(place);
  if (count == 0 || count > m.pending) {
    return w.cta->grid->report(w, "mbarrier", in.index, lane,
                               std::to_string(count) + " arrivals, " + std::to_string(m.pending) +
                                   " pending in this phase");
  }
  m.pending -= count;
  View& arriving = place.cta->mbarriers[place.offset].arriving;
  place.cta == w.cta ? join(arriving, seen) : join(arriving.others, known_to(*w.cta, seen));
  finish_phase(place);
}

// refs: address, state, count or bytes
void initialise(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const Place place = address_of(w, in, lane);
    const uint64_t count = w.value(in.refs[2], lane);
    if (place.cta == nullptr) return;
    if (count == 0 || count >= 1 << 20) {
      w.cta->grid->report(w, "mbarrier", in.index, lane, "count " + std::to_string(count));
      return;
    }
    const auto [state, is_new] = place.cta->mbarriers.try_emplace(place.offset);
    if (!is_new) {
      w.cta->grid->report(w, "mbarrier", in.index, lane, "initialised again, and not invalidated");
    }
    at(place) = {0, count, count, 0};
    state->second = {};
    state->second.initialiser = w.id;
    state->second.init_clock = w.view.clocks[w.id];
  });
}

void invalidate(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const Place place = barrier_of(w, in, lane);
    if (place.cta == nullptr) return;
    finish_mbarrier(w, place);
    place.cta->mbarriers.erase(place.offset);
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
      case kArrive: arrive(w, in, place, lane, amount, w.view); break;
      case kArriveExpect:
        expect(w, in, place, amount, lane);
        arrive(w, in, place, lane, 1, w.view);
        break;
      case kExpect: expect(w, in, place, amount, lane); break;
      case kDrop:
        at(place).count -= std::min<uint64_t>(amount, at(place).count);
        arrive(w, in, place, lane, amount, w.view);
        break;
      default: expect(w, in, place, -int64_t{amount}, lane); finish_phase(place);
    }
    if (in.refs[1].offset != 0) w.lanes<uint64_t>(in.refs[1])[lane] = state;
  });
  ++w.view.clocks[w.id];
}

// refs: address, result, parity or state. A failed wait ends the warp's turn. To fail again is
// time, not work: counters leave it out.
void wait(Warp& w, const Instruction& in, uint32_t mask) {
  uint32_t complete = 0;
  const bool fails = w.cta->grid->options.landing == Landing::kRandom && !in.flag &&
                     w.cta->grid->random() % 4 == 0;  // try_wait may, for no reason
  for_lanes(mask, [&](int lane) {
    const Place place = barrier_of(w, in, lane);
    if (place.cta == nullptr) {
      complete |= 1u << lane;  // it has been reported, so go on
      return;
    }
    const uint64_t phase = in.mode == 1 ? w.value(in.refs[2], lane) & 1
                                        : std::bit_cast<Mbarrier>(w.value(in.refs[2], lane)).phase;
    if (at(place).phase == phase || fails) return;
    complete |= 1u << lane;
    MbarrierState& state = place.cta->mbarriers[place.offset];
    for (const auto& [warp, bytes] : std::exchange(state.copied, {})) {
      place.cta->warps[warp].in_flight_bytes -= bytes;
    }
    state.complete_copy.reset();
    join(w.view, state.complete);
  });
  w.set_mask(in.refs[1], complete, mask);
  const int64_t failed_at = std::exchange(w.failed_at, complete == 0 ? in.index : -1);
  if (complete == mask) return;
  w.park(w.active, w.pc);
  if (failed_at == w.failed_at) {
    w.cta->grid->counters[in.index].take_back(mask);
    w.goes_round = true;
  }
  w.is_spinning = w.has_waited = true;
  w.state = WarpState::kYield;
}

void decode_mbarrier(Decoder& d) {
  const std::string& what = d.parts()[1];
  Instruction& out = d.out();
  if (what == "inval") {
    d.address(d.operand(0));
    out.run = invalidate;
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

}  // namespace

void fence_mbarriers(Warp& w, bool to_cluster) {
  for (auto& [offset, state] : w.cta->mbarriers) {
    state.is_fenced |= is_known(w, {w.cta, offset}, state);
    if (to_cluster && state.initialiser == w.id && !state.fenced_phase) {
      state.fenced_phase = w.cta->peers[0]->cluster_phase;
    }
  }
}

void check_signal(Warp& w, const Instruction& in, const Place& place, int lane) {
  const auto found = place.cta->mbarriers.find(place.offset);
  if (found == place.cta->mbarriers.end()) {
    w.cta->grid->report(w, "mbarrier", in.index, lane,
                        "shared byte " + std::to_string(place.offset) + " is none");
  } else if (!found->second.is_fenced && w.cta->grid->options.proxy_fences) {
    w.cta->grid->report(w, "no fence after mbarrier.init", in.index, lane,
                        "the async proxy signals at shared byte " + std::to_string(place.offset));
  }
}

void finish_mbarriers(Warp& w) {
  for (const auto& [offset, state] : w.cta->mbarriers) finish_mbarrier(w, {w.cta, offset});
}

std::vector<Place> arrivals_of(Warp& w, const Instruction& in, uint32_t mask) {
  std::vector<Place> places;
  for_lanes(mask, [&](int lane) {
    const Place place = barrier_of(w, in, lane);
    if (place.cta == nullptr) return;
    if (!in.flag) at(place).pending += 1;  // .noinc: it was initialised with these arrivals
    places.push_back(place);
  });
  return places;
}

void arrive_with(Warp& w, const Instruction& in, const std::vector<Place>& places, const View& seen,
                 uint64_t bytes) {
  MbarrierState& first = places.front().cta->mbarriers[places.front().offset];
  first.copied.emplace_back(w.id, bytes);
  for (const Place& place : places) arrive(w, in, place, 0, 1, seen);
}

void complete_transactions(Warp& w, const Instruction& in, Cta& cta, uint32_t offset,
                           uint32_t bytes) {
  const Place place{&cta, offset};
  MbarrierState& state = cta.mbarriers[offset];
  const size_t writer = cta.warps.size();
  Clocks& arriving = state.arriving.clocks;
  arriving.resize(std::max(arriving.size(), writer + 1));
  arriving[writer] = std::max(arriving[writer], cta.writer_clock);
  state.arriving_copy = in.index;
  expect(w, in, place, -int64_t{bytes}, 0);
  finish_phase(place);
}

void add_mbarrier(InstructionTable& table) { table["mbarrier"] = decode_mbarrier; }

}  // namespace ptxrun
