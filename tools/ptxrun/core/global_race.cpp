#include "core/global_race.h"

#include <algorithm>
#include <bit>

#include "core/grid.h"

namespace ptxrun {

GlobalShadow::Page& GlobalShadow::page(uint64_t number) {
  if (number != last_number_) {
    std::unique_ptr<Page>& found = pages_[number];
    if (found == nullptr) found = std::make_unique<Page>();
    last_number_ = number;
    last_ = found.get();
  }
  return *last_;
}

const GlobalShadow::Word* GlobalShadow::find(uint64_t address) const {
  const auto found = pages_.find(address / kPageBytes);
  return found == pages_.end() ? nullptr : &(*found->second)[address % kPageBytes / 4];
}

bool GlobalShadow::conflict(const Touch& before, const Touch& now) {
  if (before.clock == 0 || (before.bytes & now.bytes) == 0) return false;
  const bool are_atomic = before.is_strong && now.is_strong &&
                          ((before.is_wide && now.is_wide) || before.cta == now.cta);
  return !are_atomic;
}

bool GlobalShadow::is_before(const Warp& w, const Touch& before) {
  if (before.cta == w.cta->linear) return before.clock <= w.view.clocks[before.warp];
  if (w.view.others == nullptr) return false;
  const auto found = w.view.others->find(static_cast<uint32_t>(before.cta));
  return found != w.view.others->end() && before.clock <= found->second[before.warp];
}

void GlobalShadow::report(Grid& grid, const Warp* w, const char* what, uint64_t address,
                          const Touch& before, const Touch& now, int lane) {
  const std::string who = "CTA " + std::to_string(before.cta) + " warp " +
                          std::to_string(before.warp) + " at " +
                          grid.module.source_of(grid.kernel, before.index);
  const std::string where = grid.memory.describe(address);
  if (w != nullptr) {
    grid.report(*w, what, now.index, lane, where + ", after " + who);
  } else {
    grid.report(now.cta, now.warp, what, now.index, lane, where + ", after " + who);
  }
}

void GlobalShadow::remember(Word& word, const Touch& read) {
  Touch& newest = word.reads[0];
  if (std::bit_cast<uint64_t>(newest) == std::bit_cast<uint64_t>(read)) return;
  if (newest.clock != 0 && newest.cta != read.cta) word.reads[1] = newest;
  const uint64_t more =
      newest.is_by_same_warp(read) && newest.clock == read.clock ? uint64_t{newest.bytes} : 0;
  newest = read;
  newest.bytes |= more;
}

void GlobalShadow::check(Warp& w, const Word& word, const Touch& now, uint64_t address,
                         const Access& a) {
  const auto says = [&](const Touch& before, const char* what) {
    if (!before.is_by_same_warp(now) && conflict(before, now) && !is_before(w, before)) {
      report(*w.cta->grid, &w, what, address, before, now, a.lane);
    }
  };
  const Touch& last = word.write;
  says(last, a.is_write ? "global race: write after write" : "global race: read after write");
  const bool may_be_stale =
      a.strength == Strength::kReadOnly || (a.strength == Strength::kCached && last.cta != now.cta);
  if (may_be_stale && last.clock != 0 && (last.bytes & now.bytes) != 0) {
    report(*w.cta->grid, &w, "cached load of written data", address, last, now, a.lane);
  }
  if (!a.is_write) return;
  for (const Touch& read : word.reads) {
    says(read, "global race: write after read");
    if (read.clock != 0 && read.is_read_only && (read.bytes & now.bytes) != 0) {
      report(*w.cta->grid, &w, "write to what a cached load has read", address, read, now, a.lane);
    }
  }
}

void GlobalShadow::access(Warp& w, uint64_t address, uint64_t bytes, const Access& a) {
  Touch now;
  now.clock = std::min(w.view.clocks[w.id], (1u << 17) - 1);
  now.cta = w.cta->linear;
  now.warp = w.id;
  now.index = a.index;
  now.is_strong = is_strong(a.strength);
  now.is_wide = a.is_wide;
  now.is_read_only = a.strength == Strength::kReadOnly;
  for (uint64_t at = address / 4 * 4; at < address + bytes; at += 4) {
    now.bytes = 15;
    if (at < address) now.bytes &= 15u << (address - at);
    if (at + 4 > address + bytes) now.bytes &= 15u >> (at + 4 - address - bytes);
    Word& word = page(at / kPageBytes)[at % kPageBytes / 4];
    if (word.write.clock != 0 || a.is_write) check(w, word, now, at, a);
    if (!a.is_write) {
      remember(word, now);
      continue;
    }
    const bool adds = word.write.is_by_same_warp(now) && word.write.clock == now.clock;
    const uint64_t more = adds ? uint64_t{word.write.bytes} : 0;
    word.write = now;
    word.write.bytes |= more;
    word.reads = {};
  }
}

void GlobalShadow::compare(Grid& grid, const GlobalShadow& other) const {
  for (const auto& [number, page] : pages_) {
    const auto found = other.pages_.find(number);
    if (found == other.pages_.end()) continue;
    for (size_t i = 0; i < page->size(); ++i) {
      const Word &mine = (*page)[i], &theirs = (*found->second)[i];
      const uint64_t address = number * kPageBytes + 4 * i;
      const auto says = [&](const Touch& before, const Touch& now, const char* what) {
        if (now.clock != 0 && conflict(before, now)) {
          report(grid, nullptr, what, address, before, now, 0);
        }
      };
      says(mine.write, theirs.write, "global race: write after write");
      for (const Touch& read : theirs.reads)
        says(mine.write, read, "global race: read after write");
      for (const Touch& read : mine.reads)
        says(read, theirs.write, "global race: write after read");
    }
  }
}

void GlobalShadow::merge(GlobalShadow&& other) {
  for (auto& [number, theirs] : other.pages_) {
    std::unique_ptr<Page>& mine = pages_[number];
    if (mine == nullptr) {
      mine = std::move(theirs);
      continue;
    }
    for (size_t i = 0; i < mine->size(); ++i) {
      Word &a = (*mine)[i], &b = (*theirs)[i];
      if (b.write.clock != 0) a.write = b.write;
      if (b.reads[0].clock != 0) remember(a, b.reads[0]);
    }
  }
}

bool GlobalShadow::is_written(uint64_t address, uint64_t bytes) const {
  for (uint64_t at = address / 4 * 4; at < address + bytes; at += 4) {
    const Word* word = find(at);
    if (word != nullptr && word->write.clock != 0) return true;
  }
  return false;
}

bool GlobalShadow::is_touched(uint64_t address, uint64_t bytes) const {
  for (uint64_t at = address / 4 * 4; at < address + bytes; at += 4) {
    const Word* word = find(at);
    if (word != nullptr && (word->write.clock != 0 || word->reads[0].clock != 0)) return true;
  }
  return false;
}

}  // namespace ptxrun
