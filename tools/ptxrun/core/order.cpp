#include "core/order.h"

#include <algorithm>

#include "core/grid.h"

namespace ptxrun {

void join(Clocks& into, const Clocks& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void join(Known& into, const Known& from) {
  if (from == nullptr || from == into) return;
  if (into == nullptr) {
    into = from;
    return;
  }
  auto both = std::make_shared<std::map<uint32_t, Clocks>>(*into);
  for (const auto& [cta, clocks] : *from) join((*both)[cta], clocks);
  into = std::move(both);
}

void join(View& into, const View& from) {
  join(into.clocks, from.clocks);
  join(into.others, from.others);
  join(into.fenced, from.fenced);
  join(into.pending, from.pending);
}

Known known_to(const Cta& cta, const View& view) {
  auto all = view.others == nullptr ? std::make_shared<std::map<uint32_t, Clocks>>()
                                    : std::make_shared<std::map<uint32_t, Clocks>>(*view.others);
  (*all)[cta.linear] = view.clocks;
  return all;
}

Known known_to(const Warp& w) { return known_to(*w.cta, w.view); }

void learn(Warp& w, const Known& known) {
  if (known == nullptr) return;
  join(w.view.others, known);
  const auto own = known->find(w.cta->linear);
  if (own != known->end()) join(w.view.clocks, own->second);
}

void fence(Warp& w) {
  learn(w, w.view.pending);
  w.view.pending = nullptr;
  w.view.fenced = known_to(w);
  ++w.view.clocks[w.id];
}

// A relaxed write publishes what a fence before it has covered, and a relaxed read brings what the
// next fence will cover. An atomic goes on with what the location published before.
void Locations::access(Warp& w, uint64_t address, Strength strength, bool reads, bool writes) {
  if (!is_strong(strength)) {
    if (writes && !published_.empty()) published_.erase(address);
    return;
  }
  const auto is = [&](Strength one) {
    return strength == one || strength == Strength::kAcquireRelease;
  };
  const auto found = published_.find(address);
  if (reads && found != published_.end()) {
    is(Strength::kAcquire) ? learn(w, found->second) : join(w.view.pending, found->second);
  }
  if (!writes) return;
  Known published = is(Strength::kRelease) ? known_to(w) : w.view.fenced;
  if (is(Strength::kRelease)) ++w.view.clocks[w.id];
  if (reads && found != published_.end()) join(published, found->second);
  if (published != nullptr) {
    published_[address] = std::move(published);
  } else if (found != published_.end()) {
    published_.erase(found);
  }
}

}  // namespace ptxrun
