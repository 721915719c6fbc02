// cp.async.bulk: copies of a run of bytes by the async proxy.

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/async.h"
#include "core/decode.h"
#include "core/traffic.h"

namespace ptxrun {
namespace {

bool is_sound(Warp& w, const Instruction& in, int lane, uint64_t shared, uint64_t global,
              uint64_t bytes) {
  if (shared % 16 == 0 && global % 16 == 0 && bytes % 16 == 0) return true;
  w.cta->grid->report(w, "misaligned", in.index, lane,
                      "a bulk copy of " + std::to_string(bytes) +
                          " bytes: addresses and size must "
                          "be multiples of 16");
  return false;
}

uint8_t* reach_range(Warp& w, const Instruction& in, uint64_t address, uint32_t bytes, int lane,
                     Touch touch) {
  uint8_t* first = nullptr;
  for (uint64_t i = 0; i < bytes; i += 16) {
    uint8_t* p = reach(w, in, Space::kGlobal, address + i, 16, lane, touch);
    if (p == nullptr) return nullptr;
    first = i == 0 ? p : first;
  }
  return first;
}

// refs: shared destination, source, bytes, mbarrier; flag: the source is shared memory
void bulk_load(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t from = w.value(in.refs[1], lane) + static_cast<uint64_t>(in.table[1]);
    const auto bytes = static_cast<uint32_t>(w.value(in.refs[2], lane));
    const uint64_t at = w.value(in.refs[0], lane) + static_cast<uint64_t>(in.table[0]);
    if (!is_sound(w, in, lane, at, from, bytes) || bytes == 0) return;
    const Place to = place_of(w, in, at, bytes, lane);
    const uint64_t barrier = w.value(in.refs[3], lane) + static_cast<uint64_t>(in.table[2]);
    const Place signal = place_of(w, in, barrier, 8, lane);
    if (to.cta == nullptr || signal.cta == nullptr) return;
    check_signal(w, in, signal, lane);
    const uint8_t* source = nullptr;
    if (in.flag) {
      const Place own = place_of(w, in, from, bytes, lane);
      if (own.cta == nullptr) return;
      read_by_proxy(w, in, own.offset, bytes);
      source = own.cta->shared.data() + own.offset;
    } else {
      source = reach_range(w, in, from, bytes, lane, Touch::kRead);
      if (source == nullptr) return;
    }
    write_by_proxy(w, in, to, bytes, lane);
    count_shared_run(w, in, bytes);
    if (!in.flag) {
      count_global_run(w, in, from, bytes, Touch::kRead);
      count_issued(w.cta->bulk_in_flight, w.cta->most_bulk_in_flight, bytes);
    }
    w.cta->grid->issue([&w, &in, to, signal, source, bytes] {
      if (!in.flag) w.cta->bulk_in_flight -= bytes;
      std::memcpy(to.cta->shared.data() + to.offset, source, bytes);
      land_by_proxy(w, in, to, bytes);
      complete_transactions(w, in, *signal.cta, signal.offset, bytes);
    });
  });
}

// refs: global destination, shared source, bytes
void bulk_store(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t to = w.value(in.refs[0], lane) + static_cast<uint64_t>(in.table[0]);
    const uint64_t at = w.value(in.refs[1], lane) + static_cast<uint64_t>(in.table[1]);
    const auto bytes = static_cast<uint32_t>(w.value(in.refs[2], lane));
    if (!is_sound(w, in, lane, at, to, bytes) || bytes == 0) return;
    const Place from = place_of(w, in, at, bytes, lane);
    if (from.cta == nullptr) return;
    uint8_t* target = reach_range(w, in, to, bytes, lane, Touch::kWrite);
    if (target == nullptr) return;
    count_shared_run(w, in, bytes);
    count_global_run(w, in, to, bytes, Touch::kWrite);
    const uint32_t clock = read_by_proxy(w, in, from.offset, bytes);
    issue_store(w, from.bytes(bytes), clock,
                [target, bytes](const uint8_t* source) { std::memcpy(target, source, bytes); });
  });
}

void wait(Warp& w, const Instruction& in, uint32_t) {
  wait_for_bulk(w, static_cast<size_t>(in.value), in.flag);
}

}  // namespace

uint32_t read_by_proxy(Warp& w, const Instruction& in, uint32_t offset, uint32_t bytes) {
  Cta& cta = *w.cta;
  const uint32_t clock = ++cta.reader_clock;
  if (cta.shadow.is_on()) {
    const auto agent = static_cast<uint32_t>(cta.warps.size()) + 1 + w.id;
    cta.shadow.read_by_proxy(w, offset, bytes, agent, clock, in.index);
  }
  return clock;
}

// The bytes at `to` may be overwritten from now on.
void write_by_proxy(Warp& w, const Instruction& in, const Place& to, uint32_t bytes, int lane) {
  if (to.cta->shadow.is_on()) {
    to.cta->shadow.access(w, to.offset, bytes, Access::kAsyncWrite, lane, in.index);
  }
}

void land_by_proxy(Warp& w, const Instruction& in, const Place& to, uint32_t bytes) {
  if (to.cta->done == to.cta->warps.size()) {
    w.cta->grid->report(w, "bulk copy not waited for", in.index, 0,
                        "the CTA ends while its shared memory is written");
  }
  const uint32_t clock = ++to.cta->writer_clock;
  if (to.cta->shadow.is_on()) to.cta->shadow.land_by_proxy(to.offset, bytes, clock, in.index);
}

void decode_bulk(Decoder& d) {
  Instruction& out = d.out();
  if (d.has("commit_group")) {
    out.run = commit_bulk;
  } else if (d.has("wait_group")) {
    out.value = d.integer(0);
    out.flag = d.has("read");
    out.run = wait;
  } else if (d.has("prefetch")) {
    out.run = [](Warp&, const Instruction&, uint32_t) {};
  } else if (d.has("tensor")) {
    if (d.has("tile::gather4") || d.has("im2col")) return;
    decode_tensor(d);
  } else if (d.parts()[1] != "reduce") {
    const bool is_load = d.has("mbarrier::complete_tx::bytes");
    if (d.has("multicast::cluster")) return;
    d.address(d.operand(0));
    out.table.push_back(out.value);
    d.address(d.operand(1));
    out.table.push_back(out.value);
    d.any(d.operand(2), {Kind::kUnsigned, 4});
    if (is_load) {
      d.address(d.operand(3));
      out.table.push_back(out.value);
      out.flag = !d.has("global");
    }
    out.run = is_load ? bulk_load : bulk_store;
  }
}

}  // namespace ptxrun
