#include "core/traffic.h"

#include <algorithm>
#include <functional>

namespace ptxrun {

void Footprint::operator+=(const Footprint& other) {
  std::transform(read.begin(), read.end(), other.read.begin(), read.begin(), std::logical_or<>());
  std::transform(written.begin(), written.end(), other.written.begin(), written.begin(),
                 std::logical_or<>());
}

namespace {

// The sectors of a run are touched in this launch.
void mark(Grid& grid, uint64_t address, uint64_t bytes, Touch touch) {
  if (!grid.options.footprint) return;
  const Allocation* a = grid.memory.find(address, bytes);
  if (a == nullptr) return;
  Footprint& f = grid.footprints[a->base];
  if (f.read.empty()) {
    f.name = a->name;
    f.sectors = (a->base + a->bytes + 31) / 32 - a->base / 32;
    f.read.resize(f.sectors);
    f.written.resize(f.sectors);
  }
  const bool writes = touch == Touch::kWrite || touch == Touch::kAtomic;
  std::vector<bool>& touched = writes ? f.written : f.read;
  const uint64_t first = a->base / 32;
  for (uint64_t s = address / 32; s <= (address + bytes - 1) / 32; ++s) touched[s - first] = true;
}

// Lanes that stand side by side, in order, at full sectors: most accesses of a good kernel.
bool count_contiguous(Grid& grid, Counter& c, const uint64_t* addresses, uint64_t bytes,
                      uint32_t mask, Touch touch) {
  if (mask != kAllLanes || addresses[0] % 32 != 0) return false;
  bool is_dense = true;
  for (int i = 1; i < kLanes; ++i) is_dense &= addresses[i] - addresses[i - 1] == bytes;
  if (!is_dense) return false;
  mark(grid, addresses[0], kLanes * bytes, touch);
  c.sectors += bytes;
  c.ideal_sectors += bytes;
  return true;
}

// Distinct 32-byte sectors touched, and the fewest that could hold as many distinct bytes.
void count_sectors(Grid& grid, Counter& c, const uint64_t* addresses, uint64_t bytes, uint32_t mask,
                   Touch touch) {
  if (count_contiguous(grid, c, addresses, bytes, mask, touch)) return;
  uint64_t starts[kLanes];
  int n = 0;
  for_lanes(mask, [&](int lane) { starts[n++] = addresses[lane]; });
  if (!std::is_sorted(starts, starts + n)) std::sort(starts, starts + n);
  uint64_t distinct = 0, sectors = 0, end = 0, last_sector = ~uint64_t{0};
  for (int i = 0; i < n; ++i) {
    const uint64_t begin = i == 0 ? starts[i] : std::max(starts[i], end);
    const uint64_t stop = starts[i] + bytes;
    if (stop <= begin) continue;
    distinct += stop - begin;
    mark(grid, begin, stop - begin, touch);
    end = stop;
    for (uint64_t s = begin / 32; s <= (stop - 1) / 32; ++s) {
      if (s != last_sector) ++sectors;
      last_sector = s;
    }
  }
  c.sectors += sectors;
  c.ideal_sectors += (distinct + 31) / 32;
}

// Shared memory has 32 banks of 4 bytes; lanes are served 32, 16 or 8 at a time, by width. Aligned
// accesses of several words take as many neighbouring banks, so they are counted as units of up to
// four words.
void add_waves(Counter& c, const uint64_t* addresses, uint64_t bytes, uint32_t mask) {
  const uint64_t unit = std::clamp<uint64_t>(std::bit_floor(bytes), 4, 16), groups = 128 / unit;
  const auto shift = static_cast<uint32_t>(std::countr_zero(unit));
  const int per_phase = static_cast<int>(groups);
  for (int begin = 0; begin < kLanes; begin += per_phase) {
    const uint32_t phase = per_phase == 32 ? mask : mask >> begin & ((1u << per_phase) - 1);
    if (phase == 0) continue;
    uint64_t units[kLanes * 2], of_group[32];
    uint32_t taken = 0;
    int n = 0, distinct = 0;
    bool is_free = true;  // of conflicts: no group is asked for two units
    for_lanes(phase, [&](int lane) {
      const uint64_t first = addresses[begin + lane] >> shift;
      const uint64_t last = (addresses[begin + lane] + bytes - 1) >> shift;
      for (uint64_t u = first; u <= last && n < kLanes * 2; ++u) {
        const auto group = static_cast<uint32_t>(u % groups);
        units[n++] = u;
        if ((taken >> group & 1) != 0) {
          is_free &= of_group[group] == u;
          continue;
        }
        taken |= 1u << group;
        of_group[group] = u;
        ++distinct;
      }
    });
    uint32_t most = 1;
    if (!is_free) {
      std::sort(units, units + n);
      distinct = static_cast<int>(std::unique(units, units + n) - units);
      uint8_t in_group[32] = {};
      for (int i = 0; i < distinct; ++i) {
        most = std::max<uint32_t>(most, ++in_group[units[i] % groups]);
      }
    }
    c.waves += most;
    c.ideal_waves += (static_cast<uint64_t>(distinct) + groups - 1) / groups;
  }
}

}  // namespace

void count_access(Warp& w, const Instruction& in, Space space, const uint64_t* addresses,
                  uint64_t bytes, uint32_t mask, Touch touch) {
  Grid& grid = *w.cta->grid;
  if (!grid.options.counters || mask == 0) return;
  Counter& c = grid.counters[in.index];
  c.bytes += bytes * static_cast<uint64_t>(std::popcount(mask));
  if (space == Space::kGeneric) space = space_at(addresses[std::countr_zero(mask)]);
  if (space == Space::kGlobal) count_sectors(grid, c, addresses, bytes, mask, touch);
  if (space == Space::kShared) add_waves(c, addresses, bytes, mask);
}

void count_waves(Warp& w, const Instruction& in, const uint64_t* addresses, uint64_t bytes,
                 uint32_t mask) {
  Grid& grid = *w.cta->grid;
  if (grid.options.counters) add_waves(grid.counters[in.index], addresses, bytes, mask);
}

void count_global_run(Warp& w, const Instruction& in, uint64_t address, uint64_t bytes,
                      Touch touch) {
  Grid& grid = *w.cta->grid;
  if (!grid.options.counters || bytes == 0) return;
  Counter& c = grid.counters[in.index];
  c.bytes += bytes;
  c.sectors += (address + bytes - 1) / 32 - address / 32 + 1;
  c.ideal_sectors += (bytes + 31) / 32;
  mark(grid, address, bytes, touch);
}

void count_shared_run(Warp& w, const Instruction& in, uint64_t bytes) {
  Grid& grid = *w.cta->grid;
  if (!grid.options.counters) return;
  Counter& c = grid.counters[in.index];
  c.waves += (bytes + 127) / 128;
  c.ideal_waves += (bytes + 127) / 128;
}

void count_issued(uint64_t& in_flight, uint64_t& most, uint64_t bytes) {
  in_flight += bytes;
  most = std::max(most, in_flight);
}

}  // namespace ptxrun
