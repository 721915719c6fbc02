// bar.sync, bar.arrive and bar.red: 16 barriers of a CTA, each a count of threads.

#include <algorithm>

#include "core/grid.h"

namespace ptxrun {
namespace {

uint32_t live_threads(const Cta& cta) {
  return kLanes * static_cast<uint32_t>(std::ranges::count_if(
                      cta.warps, [](const Warp& w) { return w.state != WarpState::kDone; }));
}

void give_result(Warp& w, const Barrier& b) {
  const Instruction* in = w.barrier_instruction;
  if (in == nullptr) return;
  const Ref d = in->refs[0];
  switch (in->mode) {
    case 1: return set_lanes<uint32_t>(w, d, w.barrier_mask, [&](int) { return b.votes; });
    case 2: return w.set_mask(d, b.votes == b.threads ? ~0u : 0, w.barrier_mask);  // and
    case 3: return w.set_mask(d, b.votes != 0 ? ~0u : 0, w.barrier_mask);          // or
    default: return;
  }
}

void release_if_complete(Cta& cta, Barrier& b) {
  const uint32_t needed = b.expected != 0 ? b.expected : live_threads(cta);
  if (b.arrived == 0 || b.arrived < needed) return;
  cta.grid->last_progress = cta.grid->num_instructions;
  for (Warp& w : cta.warps) {
    if (w.state != WarpState::kBarrier || (b.waiting >> w.id & 1) == 0) continue;
    join(w.view, b.view);
    give_result(w, b);
    w.state = WarpState::kReady;
  }
  b = Barrier{};
}

}  // namespace

// Operands: barrier, thread count, predicate of bar.red (after its result); flag: only arrives.
void arrive(Warp& w, const Instruction& in, uint32_t mask) {
  const int lane = std::countr_zero(mask);
  const auto id = static_cast<uint32_t>(w.value(in.refs[1], lane));
  const auto expected = static_cast<uint32_t>(w.value(in.refs[2], lane));
  const bool waits = !in.flag;
  const uint32_t votes =
      in.mode == 0 ? 0 : static_cast<uint32_t>(std::popcount(w.bits(in.refs[3]) & mask));
  Cta& cta = *w.cta;
  if (id >= cta.barriers.size() || expected % kLanes != 0) {
    cta.grid->report(w, "barrier", in.index, 0,
                     "barrier " + std::to_string(id) + " of " + std::to_string(expected) +
                         " threads: 16 barriers, whole warps");
    return;
  }
  Barrier& b = cta.barriers[id];
  if (b.arrived != 0 && b.expected != expected) {
    cta.grid->report(w, "barrier", in.index, 0,
                     "warps name different thread counts: " + std::to_string(b.expected) + " and " +
                         std::to_string(expected));
  }
  b.expected = expected;
  b.arrived += kLanes;
  b.threads += static_cast<uint32_t>(std::popcount(mask));
  b.votes += votes;
  join(b.view, w.view);
  ++w.view.clocks[w.id];
  if (waits) {
    b.waiting |= 1u << w.id;
    w.barrier_instruction = in.mode == 0 ? nullptr : &in;
    w.barrier_mask = mask;
    w.state = WarpState::kBarrier;
  }
  release_if_complete(cta, b);
}

void leave_barriers(Cta& cta) {
  for (Barrier& b : cta.barriers) release_if_complete(cta, b);
}

}  // namespace ptxrun
