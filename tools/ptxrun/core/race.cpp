#include "core/race.h"

#include <algorithm>

#include "core/grid.h"

namespace ptxrun {

namespace {

uint32_t num_agents(uint32_t num_warps) { return 3 * num_warps + 2; }

}  // namespace

std::string SharedShadow::name_of(uint32_t rank, uint32_t agent) const {
  const std::string of_rank = rank == owner_->rank ? "" : " of rank " + std::to_string(rank);
  if (agent == num_warps_) return "the async proxy" + of_rank;
  if (agent < num_warps_) return "warp " + std::to_string(agent) + of_rank;
  return "the async proxy for warp " + std::to_string((agent - num_warps_ - 1) % num_warps_) +
         of_rank;
}

// The owner's own come first, for they are mostly alone.
uint32_t SharedShadow::reader_of(uint32_t rank, uint32_t agent) const {
  return rank == owner_->rank ? agent : (rank + 1) * num_agents(num_warps_) + agent;
}

bool SharedShadow::is_before(const Warp& w, uint32_t rank, uint32_t agent, uint32_t clock) const {
  if (rank == w.cta->rank) return clock <= w.view.clocks[agent];
  if (w.view.others == nullptr) return false;
  const auto found = w.view.others->find(owner_->peers[rank]->linear);
  return found != w.view.others->end() && agent < found->second.size() &&
         clock <= found->second[agent];
}

void SharedShadow::reset(const Cta& owner, uint32_t bytes, uint32_t num_warps) {
  owner_ = &owner;
  writes_.assign(bytes, Cell{});
  reads_.assign(bytes, 0);
  readers_.assign(1, {});
  num_warps_ = num_warps;
  memo_warp_ = ~0u;
}

void SharedShadow::access(Warp& w, uint32_t offset, uint32_t bytes, Access kind, int lane,
                          uint32_t index) {
  const uint32_t clock = w.view.clocks[w.id];
  const bool is_write = kind != Access::kRead;
  auto flags = static_cast<uint8_t>(lane | kWrittenFlag);
  if (kind == Access::kAtomic) flags |= kAtomicFlag;
  if (kind == Access::kAsyncWrite) flags |= kAsyncFlag;
  const Cell mine{clock, w.cta->rank, static_cast<uint16_t>(index), static_cast<uint8_t>(w.id),
                  flags};
  const uint32_t agent = reader_of(w.cta->rank, w.id);
  const Reader reader{clock, static_cast<uint16_t>(index), static_cast<uint8_t>(lane)};
  for (uint32_t i = offset; i < offset + bytes; ++i) {  // neighbours are mostly alike: once for all
    if (i == offset || writes_[i] != writes_[i - 1]) {
      check_write_before(w, writes_[i], i, kind, lane, index);
    }
    if (!is_write) {
      reads_[i] = with_reader(reads_[i], agent, reader);
    } else if (i == offset || reads_[i] != reads_[i - 1]) {
      check_reads_before(w, reads_[i], i, lane, index);
    }
  }
  if (is_write) {
    std::fill_n(writes_.begin() + offset, bytes, mine);
    std::fill_n(reads_.begin() + offset, bytes, 0);
  }
}

void SharedShadow::land(Warp& w, uint32_t offset, uint32_t bytes, int lane, uint32_t index) {
  const Cell mine{w.view.clocks[w.id], w.cta->rank, static_cast<uint16_t>(index),
                  static_cast<uint8_t>(w.id), static_cast<uint8_t>(lane | kWrittenFlag)};
  std::fill_n(writes_.begin() + offset, bytes, mine);
}

void SharedShadow::land_by_proxy(uint32_t offset, uint32_t bytes, uint32_t clock, uint32_t index) {
  const Cell cell{clock, owner_->rank, static_cast<uint16_t>(index),
                  static_cast<uint8_t>(num_warps_), kWrittenFlag};
  std::fill_n(writes_.begin() + offset, bytes, cell);
}

void SharedShadow::read_by_proxy(Warp& w, uint32_t offset, uint32_t bytes, uint32_t agent,
                                 uint32_t clock, uint32_t index) {
  const Reader reader{clock, static_cast<uint16_t>(index), 0};
  for (uint32_t i = offset; i < offset + bytes; ++i) {
    if (i == offset || writes_[i] != writes_[i - 1]) {
      const Cell& cell = writes_[i];
      check_write_before(w, cell, i, Access::kRead, cell.lane_and_flags & kLaneMask, index);
      const bool is_generic = w.cta->grid->options.proxy_fences &&
                              (cell.lane_and_flags & kWrittenFlag) != 0 && cell.warp < num_warps_ &&
                              cell.rank == w.cta->rank;
      if (is_generic && cell.clock > w.cta->fenced[cell.warp]) {
        w.cta->grid->report(w, "no fence.proxy.async", index, 0,
                            "the async proxy reads shared byte " + std::to_string(i) +
                                ", written by warp " + std::to_string(cell.warp) + " at " +
                                w.cta->grid->module.source_of(w.cta->grid->kernel, cell.index));
      }
    }
    reads_[i] = with_reader(reads_[i], agent, reader);
  }
}

void SharedShadow::check_write_before(Warp& w, const Cell& cell, uint32_t offset, Access kind,
                                      int lane, uint32_t index) {
  Grid& grid = *w.cta->grid;
  const auto where = [&](const char* what) {
    const std::string lane_of =
        cell.warp == num_warps_ ? "" : " lane " + std::to_string(cell.lane_and_flags & kLaneMask);
    return std::string(what) + " " + name_of(cell.rank, cell.warp) + lane_of + " at " +
           grid.module.source_of(grid.kernel, cell.index) + ", shared byte " +
           std::to_string(offset);
  };
  if ((cell.lane_and_flags & kWrittenFlag) == 0) {
    if (grid.options.uninitialised && (kind == Access::kRead || kind == Access::kAtomic)) {
      grid.report(w, "uninitialised shared memory", index, lane,
                  "read of shared byte " + std::to_string(offset));
    }
    return;
  }
  if ((cell.lane_and_flags & kAsyncFlag) != 0) {
    return grid.report(w, "async copy not waited for", index, lane, where("copied by"));
  }
  const bool both_atomic = kind == Access::kAtomic && (cell.lane_and_flags & kAtomicFlag) != 0;
  if (both_atomic) return;
  const char* race = kind == Access::kRead ? "race: read after write" : "race: write after write";
  if (cell.warp != w.id || cell.rank != w.cta->rank) {
    if (!is_before(w, cell.rank, cell.warp, cell.clock))
      grid.report(w, race, index, lane, where("written by"));
  } else if (cell.clock == w.view.clocks[w.id] && (cell.lane_and_flags & kLaneMask) != lane) {
    grid.report(w, "race within a warp", index, lane, where("written by"));
  }
}

void SharedShadow::check_reads_before(Warp& w, uint32_t set, uint32_t offset, int lane,
                                      uint32_t index) {
  if (set == 0) return;
  Grid& grid = *w.cta->grid;
  const std::vector<Reader>& readers = readers_[set];
  const uint32_t own = reader_of(w.cta->rank, w.id);
  for (uint32_t place = 0; place < readers.size(); ++place) {
    const Reader& r = readers[place];
    if (r.clock == 0) continue;
    const uint32_t block = place / num_agents(num_warps_);
    const uint32_t rank = block == 0 ? owner_->rank : block - 1;
    const uint32_t agent = place % num_agents(num_warps_);
    const bool is_race = place != own ? !is_before(w, rank, agent, r.clock)
                                      : r.clock == w.view.clocks[w.id] && r.lane != lane;
    // A warp runs in lockstep here, so its own earlier reads are reported only if another
    // instruction made them.
    if (is_race && (place != own || r.index != index)) {
      grid.report(w, place != own ? "race: write after read" : "race within a warp", index, lane,
                  "read by " + name_of(rank, agent) + " at " +
                      grid.module.source_of(grid.kernel, r.index) + ", shared byte " +
                      std::to_string(offset));
    }
  }
}

// Sets are never changed, so bytes may share one; the last step is remembered, for a warp's lanes
// mostly take the same.
uint32_t SharedShadow::with_reader(uint32_t set, uint32_t warp, Reader reader) {
  if (set == memo_set_ && warp == memo_warp_ && reader == memo_reader_) return memo_result_;
  if (set != 0) {
    const std::vector<Reader>& known = readers_[set];
    if (warp < known.size() && known[warp].clock == reader.clock) {
      if (known[warp].lane == reader.lane || known[warp].lane == kManyLanes) return set;
      reader.lane = kManyLanes;
    }
  }
  memo_set_ = set;
  memo_warp_ = warp;
  memo_reader_ = reader;
  memo_result_ = static_cast<uint32_t>(readers_.size());
  std::vector<Reader> readers = readers_[set];
  readers.resize(std::max<size_t>(readers.size(), warp + 1));
  readers[warp] = reader;
  readers_.push_back(std::move(readers));
  return memo_result_;
}

}  // namespace ptxrun
