#include "core/memory.h"

#include <algorithm>
#include <sstream>

namespace ptxrun {

Allocation& Memory::add(Allocation allocation) {
  const uint64_t base = allocation.base;
  return allocations_.insert_or_assign(base, std::move(allocation)).first->second;
}

void Memory::remove(uint64_t base) { allocations_.erase(base); }

Allocation* Memory::find(uint64_t address, uint64_t count) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  Allocation& found = std::prev(after)->second;
  return found.holds(address, count) ? &found : nullptr;
}

std::string Memory::describe(uint64_t address) const {
  std::ostringstream text;
  const auto after = allocations_.upper_bound(address);
  const auto name = [&](const Allocation& a) {
    text << (a.name.empty() ? "an allocation" : a.name) << " (" << a.bytes << " bytes)";
  };
  constexpr uint64_t kFar = 1 << 20;
  uint64_t past = kFar, ahead = kFar;
  if (after != allocations_.end()) ahead = after->first - address;
  if (after != allocations_.begin()) {
    const Allocation& before = std::prev(after)->second;
    if (before.holds(address, 1)) {
      text << "byte " << address - before.base << " of ";
      name(before);
      return text.str();
    }
    past = address - before.base - before.bytes;
  }
  if (std::min(past, ahead) >= kFar) {
    text << "no allocation near 0x" << std::hex << address << "; host memory?";
  } else if (past <= ahead) {
    text << past << " bytes past the end of ";
    name(std::prev(after)->second);
  } else {
    text << ahead << " bytes before ";
    name(after->second);
  }
  return text.str();
}

}  // namespace ptxrun
