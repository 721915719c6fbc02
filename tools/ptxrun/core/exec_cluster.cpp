// Clusters: addresses of their CTAs' shared memory, and their barrier.

#include "core/async.h"
#include "core/decode.h"

namespace ptxrun {
namespace {

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

void cluster_wait(Warp& w, const Instruction& in, uint32_t mask) {
  if (w.cluster_passed > w.cluster_phase) {
    w.cta->grid->report(w, "divergent barrier", in.index, std::countr_zero(mask),
                        "barrier.cluster.wait without an arrive before it");
  }
  w.park(w.active, w.pc);
  w.state = WarpState::kClusterBarrier;
  pass_cluster_barrier(w);
}

}  // namespace

void pass_cluster_barrier(Warp& w) {
  if (w.cta->peers[0]->cluster_phase == w.cluster_phase) return;
  learn(w, w.cta->peers[0]->cluster_released);
  w.cluster_passed = w.cluster_phase + 1;
  w.state = WarpState::kYield;
}

void leave_cluster_barrier(Cta& cta) { finish_cluster_phase(cta); }

std::span<const uint8_t> Place::bytes(uint32_t count) const {
  return {cta->shared.data() + offset, count};
}

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

void decode_cluster_barrier(Decoder& d) {
  d.out().flag = d.has("relaxed");
  d.out().run = d.has("arrive") ? cluster_arrive : cluster_wait;
}

void add_cluster(InstructionTable& table) {
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
