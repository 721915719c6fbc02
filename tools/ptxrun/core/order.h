// What has happened before: clocks of a CTA's own agents, and what came from other CTAs through
// atomics and fences on global memory, barriers of a cluster, and the end of the grid before.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace ptxrun {

struct Cta;
struct Warp;

using Clocks = std::vector<uint32_t>;

// Up to which clock of each agent, by CTA. Never changed, so many may share it; null: nothing.
using Known = std::shared_ptr<const std::map<uint32_t, Clocks>>;

void join(Clocks& into, const Clocks& from);
void join(Known& into, const Known& from);

// A warp's view of the grid. It travels with every barrier of the CTA.
struct View {
  Clocks clocks;  // of the CTA's own agents: this warp's is the current one
  Known others;   // of other CTAs
  Known fenced;   // what a relaxed write may publish: all that was seen at the last fence
  Known pending;  // what relaxed reads have brought: seen at the next fence
};

void join(View& into, const View& from);

// Of a memory instruction. Strong accesses do not race with each other.
enum class Strength : uint8_t {
  kWeak,
  kCached,    // .ca: of bytes that no other CTA writes
  kReadOnly,  // .nc: of bytes that the grid does not write
  kRelaxed,
  kAcquire,
  kRelease,
  kAcquireRelease,
};
inline bool is_strong(Strength s) { return s >= Strength::kRelaxed; }

// Locations of global memory that strong accesses have written, and what they published.
class Locations {
 public:
  void access(Warp& w, uint64_t address, Strength strength, bool reads, bool writes);

 private:
  std::unordered_map<uint64_t, Known> published_;
};

void fence(Warp& w);  // fence.acq_rel, fence.sc, membar: of the GPU's scope or wider
Known known_to(const Cta& cta, const View& view);  // all that is in the view of its warp
Known known_to(const Warp& w);
void learn(Warp& w, const Known&);  // the same from elsewhere

}  // namespace ptxrun
