// Branches, ends, barriers, fences, and the calls that a kernel may make.

#include <cstring>

#include "core/async.h"
#include "core/decode.h"
#include "core/grid.h"

namespace ptxrun {
namespace {

void branch(Warp& w, const Instruction& in, uint32_t mask) {
  const auto target = static_cast<int32_t>(in.value);
  const uint32_t stay = w.active & ~mask;
  if (stay == 0) {
    w.pc = target;
    return;
  }
  w.park(mask, target);
  w.park(stay, w.pc);
  w.schedule();
}

void branch_indexed(Warp& w, const Instruction& in, uint32_t mask) {
  w.park(w.active & ~mask, w.pc);
  for_lanes(mask, [&](int lane) {
    const uint64_t i = w.value(in.refs[0], lane);
    if (i >= in.table.size()) {
      w.cta->grid->report(w, "branch", in.index, lane, "index " + std::to_string(i));
      w.cta->grid->is_stopped = true;
    } else {
      w.pcs[lane] = static_cast<int32_t>(in.table[i]);
    }
  });
  w.schedule();
}

void exit_lanes(Warp& w, const Instruction&, uint32_t mask) { w.exit(mask); }

void barrier(Warp& w, const Instruction& in, uint32_t mask) {
  if (mask == w.live) {
    w.park(mask, w.pc);
    return arrive(w, in, mask);
  }
  w.park(w.active, w.pc);
  w.at_barrier |= mask;
  w.active = 0;  // the others go on, a block of theirs may stand behind; the last brings the warp
}

// bar.sync a[, b]; bar.arrive a, b; bar.red.op d, a[, b], p
void decode_bar(Decoder& d) {
  Instruction& out = d.out();
  if (d.has("warp")) {
    d.unused();
    d.source(0, {Kind::kBits, 4});
    out.run = [](Warp& w, const Instruction& in, uint32_t mask) {
      if (!meet(w, in, in.refs[1], mask)) return;
      ++w.view.clocks[w.id];
    };
    return;
  }
  if (d.has("cluster")) return decode_cluster_barrier(d);
  const bool reduces = d.has("red");
  out.flag = d.has("arrive");
  out.vector = d.parts()[0] == "bar" || d.has("aligned") ? 1 : 0;
  size_t next = 0;
  if (reduces) {
    const bool counts = d.has("popc");
    out.mode = counts ? 1 : d.has("and") ? 2 : 3;
    if (counts) {
      d.destination(0, {Kind::kUnsigned, 4});
    } else {
      d.predicate_out(d.operand(0).name);
    }
    next = 1;
  } else {
    d.unused();
  }
  d.source(next++, {Kind::kUnsigned, 4});
  Operand all;
  all.form = Operand::Form::kInteger;
  const bool has_count = next + (reduces ? 1 : 0) < d.count();
  d.ref(has_count ? d.operand(next++) : all, {Kind::kUnsigned, 4}, false);
  if (reduces) d.predicate_in(d.operand(next));
  out.run = barrier;
}

void nothing(Warp&, const Instruction&, uint32_t) {}

// What this warp has seen of shared memory may now be read by the async proxy.
void fence_proxy(Warp& w, const Instruction&, uint32_t) {
  std::vector<uint32_t>& fenced = w.cta->fenced;
  for (size_t i = 0; i < fenced.size(); ++i) fenced[i] = std::max(fenced[i], w.view.clocks[i]);
  ++w.view.clocks[w.id];
  fence_mbarriers(w, false);
}

void fence_init(Warp& w, const Instruction&, uint32_t) { fence_mbarriers(w, true); }

// griddepcontrol.wait: what the grid before has done is there.
void wait_for_grid(Warp& w, const Instruction&, uint32_t) { w.view.clocks.back() = 1; }

void trap(Warp& w, const Instruction& in, uint32_t mask) {
  w.cta->grid->report(w, "trap", in.index, std::countr_zero(mask), "the kernel gave up");
  w.cta->grid->is_stopped = true;
}

void decode_branch(Decoder& d) {
  if (d.parts()[0] == "brx") {
    d.source(0, {Kind::kUnsigned, 4});
    for (const std::string& label : d.branch_targets(d.operand(1).name)) {
      d.out().table.push_back(d.target(label));
    }
    d.out().run = branch_indexed;
  } else {
    d.out().value = d.target(d.operand(0).name);
    d.out().run = branch;
  }
}

std::string text_at(Warp& w, const Instruction& in, uint64_t address, int lane) {
  std::string text;
  for (;; ++address) {
    const uint8_t* p = reach(w, in, Space::kGeneric, address, 1, lane, Touch::kRead);
    if (p == nullptr || *p == 0) return text;
    text += static_cast<char>(*p);
  }
}

// printf("...", args): the arguments lie in local memory as a C struct.
std::string formatted(Warp& w, const Instruction& in, int lane, const std::string& format,
                      uint64_t args) {
  std::string text;
  uint64_t at = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size() || format[i + 1] == '%') {
      text += format[i];
      i += format[i] == '%' ? 1 : 0;
      continue;
    }
    size_t end = i + 1;
    while (end < format.size() && std::strchr("diouxXeEfFgGaAcsp", format[end]) == nullptr) ++end;
    std::string spec = format.substr(i, end - i + 1);
    const bool is_float = std::strchr("eEfFgGaA", spec.back()) != nullptr;
    const bool is_wide =
        is_float || spec.find('l') != std::string::npos || spec.back() == 'p' || spec.back() == 's';
    const uint64_t bytes = is_wide ? 8 : 4;
    at = (at + bytes - 1) / bytes * bytes;
    uint64_t bits = 0;
    if (const uint8_t* p = reach(w, in, Space::kGeneric, args + at, bytes, lane, Touch::kRead)) {
      std::memcpy(&bits, p, bytes);
    }
    at += bytes;
    char piece[1024];
    if (is_float) {
      std::snprintf(piece, sizeof piece, spec.c_str(), std::bit_cast<double>(bits));
    } else if (spec.back() == 's') {
      std::snprintf(piece, sizeof piece, spec.c_str(), text_at(w, in, bits, lane).c_str());
    } else if (is_wide) {
      std::snprintf(piece, sizeof piece, spec.c_str(), static_cast<unsigned long long>(bits));
    } else {
      std::snprintf(piece, sizeof piece, spec.c_str(), static_cast<uint32_t>(bits));
    }
    text += piece;
    i = end;
  }
  return text;
}

uint64_t argument(Warp& w, const Instruction& in, size_t i, int lane) {
  uint64_t bits = 0;
  const uint64_t at = kLocalWindow + w.value(in.refs[i], lane);
  if (const uint8_t* p = reach(w, in, Space::kGeneric, at, 8, lane, Touch::kRead)) {
    std::memcpy(&bits, p, 8);
  }
  return bits;
}

void call_printf(Warp& w, const Instruction& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const std::string format = text_at(w, in, argument(w, in, 0, lane), lane);
    const std::string text = formatted(w, in, lane, format, argument(w, in, 1, lane));
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

void call_assert(Warp& w, const Instruction& in, uint32_t mask) {
  const int lane = std::countr_zero(mask);
  w.cta->grid->report(w, "assert", in.index, lane, text_at(w, in, argument(w, in, 0, lane), lane));
  w.cta->grid->is_stopped = true;
}

void decode_call(Decoder& d) {
  size_t name = 0;
  while (name < d.count() && d.operand(name).form != Operand::Form::kName) ++name;
  const std::string& function = d.operand(name).name;
  if (function != "vprintf" && function != "__assertfail") d.fail("call of " + function);
  for (size_t i = 0; i < 2; ++i) {
    d.any(d.operand(name + 1).items.at(i), {Kind::kBits, 8});
  }
  d.out().run = function == "vprintf" ? call_printf : call_assert;
}

}  // namespace

// The lanes of a member mask meet at an instruction. False: not all are there, the lanes wait.
bool meet(Warp& w, const Instruction& in, Ref members, uint32_t mask) {
  const int lane = std::countr_zero(mask);
  const auto wanted = static_cast<uint32_t>(w.value(members, lane));
  Grid& grid = *w.cta->grid;
  if ((mask & ~wanted) != 0) {
    grid.report(w, "member mask", in.index, std::countr_zero(mask & ~wanted),
                "a lane runs this that its mask does not name");
  }
  if ((wanted & w.live & ~mask) == 0) return true;
  w.park(w.active & ~mask, w.pc);
  w.park(mask, static_cast<int32_t>(in.index));
  w.at_sync |= mask;
  w.active = 0;
  // Those who waited at this same place wake with the lanes that come now.
  uint32_t here = 0;
  for_lanes(w.at_sync & w.live, [&](int i) {
    if (w.pcs[i] == static_cast<int32_t>(in.index)) here |= 1u << i;
  });
  if ((wanted & w.live & ~here) == 0) w.at_sync &= ~here;
  return false;
}

void add_control(InstructionTable& table) {
  table["bra"] = table["brx"] = decode_branch;
  table["ret"] = table["exit"] = [](Decoder& d) { d.out().run = exit_lanes; };
  table["bar"] = table["barrier"] = decode_bar;
  table["trap"] = table["brkpt"] = [](Decoder& d) { d.out().run = trap; };
  table["call"] = decode_call;
  table["fence"] = table["membar"] = [](Decoder& d) {
    const bool is_wide = d.has("gpu") || d.has("sys") || d.has("gl");
    d.out().run = d.has("proxy")           ? (d.has("async") ? fence_proxy : nothing)
                  : d.has("mbarrier_init") ? fence_init
                  : is_wide                ? [](Warp& w, const Instruction&, uint32_t) { fence(w); }
                                           : nothing;
  };
  table["griddepcontrol"] = [](Decoder& d) {
    d.out().run = d.has("wait") ? wait_for_grid : nothing;
  };
  for (const char* name : {"nanosleep", "prefetch", "prefetchu", "discard", "setmaxnreg", "pmevent",
                           "applypriority"}) {
    table[name] = [](Decoder& d) { d.out().run = nothing; };
  }
}

}  // namespace ptxrun
