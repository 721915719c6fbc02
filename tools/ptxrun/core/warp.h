// A warp: 32 lanes in lockstep. Each lane has a pc; the lanes with the smallest one run, and others
// join when it reaches theirs. A warp that must wait keeps its pc and returns to the scheduler.
#pragma once

#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/order.h"
#include "core/program.h"

namespace ptxrun {

struct Cta;
struct Grid;

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

enum class WarpState : uint8_t {
  kReady,
  kYield,           // could go on, but something must happen elsewhere first
  kBarrier,         // bar.sync
  kClusterBarrier,  // barrier.cluster.wait
  kDone,
};

// One cp.async, until its group is waited for.
struct AsyncCopy {
  uint32_t lanes = 0;
  uint32_t reads = 0;   // those of them that copy anything
  uint32_t landed = 0;  // and those that have
  uint32_t index = 0;
  uint8_t bytes = 0;
  uint8_t source_bytes[kLanes];  // the rest is zero
  uint32_t destinations[kLanes];
  const uint8_t* sources[kLanes];
};

struct BulkStore {
  std::span<const uint8_t> from;              // shared memory
  std::vector<uint8_t> bytes;                 // that were there when it was read
  std::function<void(const uint8_t*)> write;  // none: it is done
};

struct BulkGroup {
  std::vector<BulkStore> stores;
  uint32_t clock = 0;  // of the async proxy, when all have read
};

// A wgmma, or a move of its sums, until it lands.
struct AsyncProduct {
  const Instruction* instruction = nullptr;
  void (*land)(Warp&, const AsyncProduct&) = nullptr;  // null: a move
  uint32_t mask = 0;                                   // of a move
  uint64_t a = 0, b = 0;                               // descriptors
  bool adds = false;
};

struct ProductGroup {
  std::vector<AsyncProduct> products;  // that have not landed
  uint32_t clock = 0;                  // of the async proxy, when all are done
};

struct Warp {
  Cta* cta = nullptr;
  uint32_t id = 0;
  std::vector<uint8_t> registers;
  std::vector<uint8_t> local;

  uint32_t live = 0;
  uint32_t active = 0;
  uint32_t at_barrier = 0;      // lanes of a diverged warp that are there already
  bool has_lost_lanes = false;  // some have left since the first came to a barrier
  uint32_t at_sync = 0;         // lanes that wait for the others of a member mask
  int32_t pc = 0;
  int32_t next = 0;  // smallest pc among the lanes that wait
  int32_t pcs[kLanes] = {};
  WarpState state = WarpState::kReady;
  int64_t failed_at = -1;    // index of the last wait, if it failed
  bool goes_round = false;   // back to it, as before
  bool is_spinning = false;  // a wait has just failed: let other lanes go first
  bool has_waited = false;   // this turn ended in a failed wait
  uint32_t rotation = 0;

  uint32_t carry = 0;                                // of add.cc and sub.cc, one bit each
  const Instruction* barrier_instruction = nullptr;  // bar.red: where the result goes
  uint32_t barrier_mask = 0;

  // Happens-before: what this warp has seen of each agent's clock; its own is the current one.
  // Agents are the W warps, the async proxy as writer (W), for each warp the async proxy as reader
  // of its bulk stores (W + 1 + warp) and of its wgmma operands (2W + 1 + warp), for each warp
  // those of its cp.async that arrive at mbarriers (3W + 1 + warp), and the grid before (4W + 1),
  // which is over or not.
  View view;

  uint32_t copy_clock = 0;                    // of those that arrive at mbarriers
  std::vector<AsyncCopy> copies;              // not committed
  std::deque<std::vector<AsyncCopy>> groups;  // committed
  uint64_t in_flight_bytes = 0;               // of both
  uint64_t most_in_flight = 0;

  BulkGroup bulk;                                  // bulk stores not committed
  std::deque<BulkGroup> bulk_groups, bulk_writes;  // that are to read; that are to write

  // wgmma: registers that hold sums under way, and operands, by the number of their group.
  std::map<uint32_t, uint32_t> in_flight, being_read;
  uint32_t matrix_group = 0;
  std::deque<ProductGroup> products;  // of the groups not waited for, the last one still open
  bool has_matrix_fence = false;

  uint32_t cluster_phase = 0;   // of barrier.cluster, when this warp arrived
  uint32_t cluster_passed = 0;  // phases that are complete, as far as it has waited

  template <class T>
  T* lanes(Ref r) {
    return reinterpret_cast<T*>(registers.data() + r.offset);
  }
  uint32_t& mask(Ref r) { return *lanes<uint32_t>(r); }
  uint32_t bits(Ref r) { return r.is_inverted ? ~mask(r) : mask(r); }
  // Lane's value of an operand of any width, zero extended.
  uint64_t value(Ref r, int lane) {
    switch (r.bytes) {
      case 2: return lanes<uint16_t>(r)[lane];
      case 4: return lanes<uint32_t>(r)[lane];
      default: return lanes<uint64_t>(r)[lane];
    }
  }
  void set_mask(Ref r, uint32_t bits, uint32_t where) {
    if (r.offset != 0) mask(r) = (mask(r) & ~where) | (bits & where);
  }

  void park(uint32_t which, int32_t at);
  bool schedule();  // false: no lane can run
  void exit(uint32_t which);
};

// Calls f(lane) for each lane of the mask, in ascending order.
template <class F>
void for_lanes(uint32_t mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

// registers[d][lane] = f(lane) for the lanes of the mask. Lanes are independent, so operands may be
// the destination itself. Part of its caller, or what f holds would be read again for each lane.
template <class T, class F>
[[gnu::always_inline]] inline void set_lanes(Warp& w, Ref d, uint32_t mask, F&& f) {
  if (d.offset == 0) return;  // _
  T* out = w.lanes<T>(d);
  if (mask == kAllLanes) {
    _Pragma("GCC ivdep") for (int i = 0; i < kLanes; ++i) out[i] = f(i);
  } else {
    _Pragma("GCC ivdep") for (int i = 0; i < kLanes; ++i) {
      const T value = f(i);
      out[i] = (mask >> i & 1) != 0 ? value : out[i];
    }
  }
}

// One bit per lane.
template <class F>
[[gnu::always_inline]] inline uint32_t lane_bits(F&& f) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(f(i) ? 1 : 0) << i;
  return bits;
}

// Writes to a register of any width: the low bytes of `value(lane)`.
template <class F>
[[gnu::always_inline]] inline void set_any(Warp& w, Ref d, uint32_t mask, F&& value) {
  switch (d.bytes) {
    case 2:
      return set_lanes<uint16_t>(w, d, mask,
                                 [&](int i) { return static_cast<uint16_t>(value(i)); });
    case 4:
      return set_lanes<uint32_t>(w, d, mask,
                                 [&](int i) { return static_cast<uint32_t>(value(i)); });
    default:
      return set_lanes<uint64_t>(w, d, mask,
                                 [&](int i) { return static_cast<uint64_t>(value(i)); });
  }
}

}  // namespace ptxrun
