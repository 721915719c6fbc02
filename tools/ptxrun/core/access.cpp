#include "core/access.h"

#include <algorithm>
#include <cstring>

#include "core/async.h"

namespace ptxrun {
namespace {

std::string hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

const char* verb(Touch touch) {
  static constexpr const char* kVerbs[] = {"read", "write", "atomic", "copy"};
  return kVerbs[static_cast<int>(touch)];
}

void report_access(Warp& w, const Instruction& in, const char* kind, int lane, uint64_t bytes,
                   Touch touch, const std::string& where) {
  w.cta->grid->report(
      w, kind, in.index, lane,
      std::string(verb(touch)) + " of " + std::to_string(bytes) + " bytes at " + where);
}

void note_shared(Warp& w, const Instruction& in, Cta& cta, uint64_t offset, uint64_t bytes,
                 int lane, Touch touch) {
  static constexpr Access kKinds[] = {Access::kRead, Access::kWrite, Access::kAtomic,
                                      Access::kAsyncWrite};
  if (!cta.shadow.is_on()) return;
  cta.shadow.access(w, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes),
                    kKinds[static_cast<int>(touch)], lane, in.index);
}

uint8_t* reach_shared(Warp& w, const Instruction& in, uint64_t offset, uint64_t bytes, int lane,
                      Touch touch) {
  if (offset >= kSharedStride) {
    const Place place = place_of(w, in, offset, bytes, lane);
    if (place.cta == nullptr) return nullptr;
    note_shared(w, in, *place.cta, place.offset, bytes, lane, touch);
    return place.cta->shared.data() + place.offset;
  }
  Cta& cta = *w.cta;
  if (offset + bytes > cta.shared.size()) {
    report_access(
        w, in, "out of bounds", lane, bytes, touch,
        "shared byte " + std::to_string(offset) + " of " + std::to_string(cta.shared.size()));
    return nullptr;
  }
  note_shared(w, in, cta, offset, bytes, lane, touch);
  return cta.shared.data() + offset;
}

// What this access means to other warps of the grid, and to the grid before. False: it must not be.
bool note(Warp& w, const Instruction& in, const Allocation& in_there, uint64_t address,
          uint64_t bytes, int lane, Touch touch) {
  Grid& grid = *w.cta->grid;
  const bool reads = touch != Touch::kWrite,
             writes = touch == Touch::kWrite || touch == Touch::kAtomic;
  if (in_there.is_constant) {
    if (writes) {
      report_access(w, in, "write to an input", lane, bytes, touch, grid.memory.describe(address));
    }
    return !writes;
  }
  if (!grid.options.checks) return true;
  if (grid.before != nullptr && w.view.clocks.back() == 0 &&
      (writes ? grid.before->is_touched(address, bytes)
              : grid.before->is_written(address, bytes))) {
    report_access(w, in, "no griddepcontrol.wait", lane, bytes, touch,
                  grid.memory.describe(address) + ", which the grid before may still use");
    return false;
  }
  grid.touched.access(w, address, bytes, {writes, in.strength, in.is_wide, lane, in.index});
  if (in.is_wide) grid.locations.access(w, address, in.strength, reads, writes);
  return true;
}

uint8_t* reach_global(Warp& w, const Instruction& in, uint64_t address, uint64_t bytes, int lane,
                      Touch touch) {
  Grid& grid = *w.cta->grid;
  Allocation*& hit = grid.last_hit[in.index];
  if (hit == nullptr || !hit->holds(address, bytes)) hit = grid.memory.find(address, bytes);
  if (hit == nullptr) {
    report_access(w, in, "out of bounds", lane, bytes, touch,
                  hex(address) + ", " + grid.memory.describe(address));
    return nullptr;
  }
  const uint64_t offset = address - hit->base;
  if (!hit->is_written.empty()) {
    auto* flags = hit->is_written.data() + offset;
    if (touch == Touch::kWrite) {
      std::fill_n(flags, bytes, 1);
    } else if (grid.options.uninitialised && std::find(flags, flags + bytes, 0) != flags + bytes) {
      report_access(w, in, "uninitialised memory", lane, bytes, touch,
                    grid.memory.describe(address));
    }
  }
  if (!note(w, in, *hit, address, bytes, lane, touch)) return nullptr;
  return hit->data + offset;
}

}  // namespace

Space space_at(uint64_t address) {
  if (address >= kParamWindow) return Space::kParam;
  if (address >= kLocalWindow) return Space::kLocal;
  return address >= kSharedWindow ? Space::kShared : Space::kGlobal;
}

uint8_t* reach(Warp& w, const Instruction& in, Space space, uint64_t address, uint64_t bytes,
               int lane, Touch touch, uint64_t used) {
  if (space == Space::kGeneric) {
    space = space_at(address);
    if (space == Space::kShared) address -= kSharedWindow;
  }
  if (address % bytes != 0) {
    report_access(w, in, "misaligned", lane, bytes, touch, hex(address));
    return nullptr;
  }
  bytes = std::min(bytes, used);
  switch (space) {
    case Space::kShared: return reach_shared(w, in, address, bytes, lane, touch);
    case Space::kLocal: {
      if (address >= kLocalWindow) address -= kLocalWindow;
      const uint64_t size = w.cta->grid->kernel.local_bytes;
      if (address + bytes <= size) {
        return w.local.data() + static_cast<uint64_t>(lane) * size + address;
      }
      report_access(w, in, "out of bounds", lane, bytes, touch,
                    "local byte " + std::to_string(address) + " of " + std::to_string(size));
      return nullptr;
    }
    case Space::kParam: {
      if (address >= kParamWindow) address -= kParamWindow;
      const Grid& grid = *w.cta->grid;
      if (touch == Touch::kRead && address + bytes <= grid.kernel.parameter_bytes) {
        return const_cast<uint8_t*>(grid.parameters) + address;
      }
      report_access(w, in, "out of bounds", lane, bytes, touch,
                    "parameter byte " + std::to_string(address));
      return nullptr;
    }
    default: return reach_global(w, in, address, bytes, lane, touch);
  }
}

uint8_t* reach_all(Warp& w, const Instruction& in, Space space, const uint64_t* addresses,
                   uint64_t bytes, uint32_t mask, Touch touch) {
  const uint64_t any = addresses[std::countr_zero(mask)];
  uint64_t least = any, most = any, bits = 0;
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t address = (mask >> i & 1) != 0 ? addresses[i] : any;
    least = std::min(least, address);
    most = std::max(most, address);
    bits |= address;
  }
  if (bits % bytes != 0) return nullptr;
  if (space == Space::kGeneric) {
    space = space_at(least);
    if (space != space_at(most)) return nullptr;
  }
  const uint64_t span = most - least + bytes;
  if (space == Space::kGlobal) {
    Allocation*& hit = w.cta->grid->last_hit[in.index];
    if (hit == nullptr || !hit->holds(least, span)) hit = w.cta->grid->memory.find(least, span);
    if (hit == nullptr) return nullptr;
    if (!hit->is_written.empty()) {
      if (touch != Touch::kWrite) return nullptr;
      for_lanes(mask, [&](int lane) {
        std::memset(hit->is_written.data() + (addresses[lane] - hit->base), 1, bytes);
      });
    }
    bool is_good = true;
    for_lanes(mask,
              [&](int lane) { is_good &= note(w, in, *hit, addresses[lane], bytes, lane, touch); });
    return is_good ? hit->data - hit->base : nullptr;
  }
  if (space != Space::kShared) return nullptr;
  const uint64_t window = least >= kSharedWindow ? kSharedWindow : 0;
  if (most - window + bytes > w.cta->shared.size()) return nullptr;
  if (w.cta->shadow.is_on()) {
    for_lanes(mask, [&](int lane) {
      note_shared(w, in, *w.cta, addresses[lane] - window, bytes, lane, touch);
    });
  }
  return w.cta->shared.data() - window;
}

}  // namespace ptxrun
