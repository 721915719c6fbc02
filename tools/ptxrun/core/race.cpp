#include "core/race.h"

#include <algorithm>
#include <numeric>

#include "core/grid.h"

namespace ptxrun {

std::string SharedShadow::name_of(const Touch& t) const {
  const std::string of_rank = t.rank == owner_->rank ? "" : " of rank " + std::to_string(t.rank);
  if (t.agent == num_warps_) return "the async proxy" + of_rank;
  if (t.agent < num_warps_) return "warp " + std::to_string(t.agent) + of_rank;
  const std::string of_warp = std::to_string((t.agent - num_warps_ - 1) % num_warps_) + of_rank;
  return (is_generic(t) ? "cp.async of warp " : "the async proxy for warp ") + of_warp;
}

std::string SharedShadow::byte_of(uint32_t grain) const {
  return "shared byte " + std::to_string(grain << grain_shift_);
}

bool SharedShadow::is_before(const Warp& w, const Touch& t) const {
  if (t.rank == w.cta->rank) return t.clock <= w.view.clocks[t.agent];
  if (w.view.others == nullptr) return false;
  const auto found = w.view.others->find(owner_->peers[t.rank]->linear);
  return found != w.view.others->end() && t.agent < found->second.size() &&
         t.clock <= found->second[t.agent];
}

void SharedShadow::reset(const Cta& owner, uint32_t bytes, uint32_t grain, uint32_t num_warps) {
  owner_ = &owner;
  grain_shift_ = static_cast<uint32_t>(std::countr_zero(grain));
  grains_.assign(bytes == 0 ? 0 : end_of(0, bytes), Grain{});
  free_sets_.resize(sets_.size());
  std::iota(free_sets_.begin(), free_sets_.end(), 0);
  num_warps_ = num_warps;
}

// What most accesses find: a write that this warp has seen, its own, or another atomic.
bool SharedShadow::is_harmless(const Warp& w, const Touch& write, Access kind, int lane) const {
  if (write.clock == 0) return kind == Access::kWrite || kind == Access::kAsyncWrite;
  if (write.has(kAsyncFlag)) return false;
  if (kind == Access::kAtomic && write.has(kAtomicFlag)) return true;
  if (write.rank != w.cta->rank) return false;
  const uint32_t seen = w.view.clocks[write.agent];
  return write.agent != w.id ? write.clock <= seen : write.clock < seen || write.lane() == lane;
}

void SharedShadow::access(Warp& w, uint32_t offset, uint32_t bytes, Access kind, int lane,
                          uint32_t index) {
  const bool is_write = kind != Access::kRead;
  Touch mine{w.view.clocks[w.id], w.cta->rank, static_cast<uint16_t>(index),
             static_cast<uint8_t>(w.id), static_cast<uint8_t>(lane)};
  if (kind == Access::kAtomic) mine.lane_and_flags |= kAtomicFlag;
  if (kind == Access::kAsyncWrite) mine.lane_and_flags |= kAsyncFlag;
  Grain last{mine, {}};  // neighbours are mostly alike: a report for all of them
  for (uint32_t i = first_of(offset), end = end_of(offset, bytes); i < end; ++i) {
    Grain& g = grains_[i];
    if (!is_harmless(w, g.write, kind, lane) && g.write != last.write) {
      check_write_before(w, g.write, i, kind, lane, index);
    }
    last.write = g.write;
    if (!is_write) {
      add_reader(w, g.read, mine);
      continue;
    }
    if (g.read.clock != 0) {
      if (g.read != last.read) check_reads_before(w, g.read, i, lane, index);
      last.read = g.read;
      clear(g.read);
    }
    g.write = mine;
  }
}

void SharedShadow::land(const Warp& w, uint32_t agent, uint32_t clock, uint32_t offset,
                        uint32_t bytes, int lane, uint32_t index) {
  const Touch mine{clock, w.cta->rank, static_cast<uint16_t>(index), static_cast<uint8_t>(agent),
                   static_cast<uint8_t>(lane)};
  for (uint32_t i = first_of(offset), end = end_of(offset, bytes); i < end; ++i) {
    grains_[i].write = mine;
  }
}

void SharedShadow::land_by_proxy(uint32_t offset, uint32_t bytes, uint32_t clock, uint32_t index) {
  const Touch touch{clock, owner_->rank, static_cast<uint16_t>(index),
                    static_cast<uint8_t>(num_warps_), 0};
  for (uint32_t i = first_of(offset), end = end_of(offset, bytes); i < end; ++i) {
    grains_[i].write = touch;
  }
}

void SharedShadow::read_by_proxy(Warp& w, uint32_t offset, uint32_t bytes, uint32_t agent,
                                 uint32_t clock, uint32_t index) {
  const Touch reader{clock, w.cta->rank, static_cast<uint16_t>(index), static_cast<uint8_t>(agent),
                     0};
  Touch last = reader;
  for (uint32_t i = first_of(offset), end = end_of(offset, bytes); i < end; ++i) {
    Grain& g = grains_[i];
    if (g.write != last) {
      const Touch& write = last = g.write;
      check_write_before(w, write, i, Access::kRead, write.lane(), index);
      const bool needs_fence = w.cta->grid->options.proxy_fences && write.clock != 0 &&
                               is_generic(write) && write.rank == w.cta->rank;
      if (needs_fence && write.clock > w.cta->fenced[write.agent]) {
        w.cta->grid->report(w, "no fence.proxy.async", index, 0,
                            "the async proxy reads " + byte_of(i) + ", written by " +
                                name_of(write) + " at " +
                                w.cta->grid->module.source_of(w.cta->grid->kernel, write.index));
      }
    }
    add_reader(w, g.read, reader);
  }
}

void SharedShadow::check_write_before(Warp& w, const Touch& write, uint32_t grain, Access kind,
                                      int lane, uint32_t index) {
  Grid& grid = *w.cta->grid;
  const auto where = [&](const char* what) {
    const std::string lane_of =
        write.agent == num_warps_ ? "" : " lane " + std::to_string(write.lane());
    return std::string(what) + " " + name_of(write) + lane_of + " at " +
           grid.module.source_of(grid.kernel, write.index) + ", " + byte_of(grain);
  };
  if (write.clock == 0) {
    if (grid.options.uninitialised && (kind == Access::kRead || kind == Access::kAtomic)) {
      grid.report(w, "uninitialised shared memory", index, lane, "read of " + byte_of(grain));
    }
    return;
  }
  if (write.has(kAsyncFlag)) {
    return grid.report(w, "async copy not waited for", index, lane, where("copied by"));
  }
  const char* race = kind == Access::kRead ? "race: read after write" : "race: write after write";
  if (write.agent != w.id || write.rank != w.cta->rank) {
    if (!is_before(w, write)) grid.report(w, race, index, lane, where("written by"));
  } else if (write.clock == w.view.clocks[w.id] && write.lane() != lane) {
    grid.report(w, "race within a warp", index, lane, where("written by"));
  }
}

void SharedShadow::check_reads_before(Warp& w, const Touch& read, uint32_t grain, int lane,
                                      uint32_t index) {
  if (!read.has(kSetFlag)) return check_read_before(w, read, grain, lane, index);
  for (const Touch& one : sets_[read.clock - 1]) check_read_before(w, one, grain, lane, index);
}

void SharedShadow::check_read_before(Warp& w, const Touch& read, uint32_t grain, int lane,
                                     uint32_t index) {
  const bool is_own = read.agent == w.id && read.rank == w.cta->rank;
  // A warp runs in lockstep here, so its own earlier reads are reported only if another
  // instruction made them.
  const bool is_race = is_own ? read.clock == w.view.clocks[w.id] && read.index != index &&
                                    (read.has(kManyFlag) || read.lane() != lane)
                              : !is_before(w, read);
  if (!is_race) return;
  Grid& grid = *w.cta->grid;
  grid.report(w, is_own ? "race within a warp" : "race: write after read", index, lane,
              "read by " + name_of(read) + " at " + grid.module.source_of(grid.kernel, read.index) +
                  ", " + byte_of(grain));
}

// A read that is ordered before this one needs no place: whatever is ordered after this one is
// after that one too.
void SharedShadow::add_reader(const Warp& w, Touch& known, const Touch& reader) {
  const auto takes_place_of = [&](const Touch& old) {
    return (old.agent == reader.agent && old.rank == reader.rank) || is_before(w, old);
  };
  const auto replaced = [&](const Touch& old) {
    Touch now = reader;
    const bool is_same_time =
        old.agent == reader.agent && old.rank == reader.rank && old.clock == reader.clock;
    if (is_same_time && (old.has(kManyFlag) || old.lane() != reader.lane())) {
      now.lane_and_flags |= kManyFlag;
    }
    return now;
  };
  if (known.clock == 0) {
    known = reader;
  } else if (!known.has(kSetFlag)) {
    if (takes_place_of(known)) {
      known = replaced(known);
      return;
    }
    if (free_sets_.empty()) {
      free_sets_.push_back(static_cast<uint32_t>(sets_.size()));
      sets_.emplace_back();
    }
    const uint32_t set = free_sets_.back();
    free_sets_.pop_back();
    sets_[set].assign({known, reader});
    known = {};
    known.clock = set + 1;
    known.lane_and_flags = kSetFlag;
  } else {
    std::vector<Touch>& set = sets_[known.clock - 1];
    const auto found = std::ranges::find_if(set, takes_place_of);
    if (found != set.end()) {
      *found = replaced(*found);
    } else {
      set.push_back(reader);
    }
  }
}

void SharedShadow::clear(Touch& read) {
  if (read.has(kSetFlag)) free_sets_.push_back(read.clock - 1);
  read = {};
}

}  // namespace ptxrun
