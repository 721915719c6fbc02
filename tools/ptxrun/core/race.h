// Shared-memory shadow: who touched each byte last, and whether that is ordered before an access.
//
// FastTrack at the grain of warps: a clock per warp, advanced by every barrier it passes; a barrier
// joins what its warps have seen. Within a warp, lanes are ordered only by bar.warp.sync. Warps of
// the other CTAs of a cluster take part.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptxrun {

struct Cta;
struct Warp;

enum class Access : uint8_t { kRead, kWrite, kAtomic, kAsyncWrite };

class SharedShadow {
 public:
  // No access is smaller than `grain` bytes, a power of two.
  void reset(const Cta& owner, uint32_t bytes, uint32_t grain, uint32_t num_warps);
  bool is_on() const { return !grains_.empty(); }
  void access(Warp& w, uint32_t offset, uint32_t bytes, Access kind, int lane, uint32_t index);
  // A bulk copy is complete: the bytes are the async proxy's, `clock` its own.
  void land_by_proxy(uint32_t offset, uint32_t bytes, uint32_t clock, uint32_t index);
  // The async proxy reads for a warp: as `agent`, until that warp has waited for `clock`.
  void read_by_proxy(Warp& w, uint32_t offset, uint32_t bytes, uint32_t agent, uint32_t clock,
                     uint32_t index);
  // A copy of this warp is complete: from here on its bytes are plain writes of `agent` at `clock`.
  void land(const Warp& w, uint32_t agent, uint32_t clock, uint32_t offset, uint32_t bytes,
            int lane, uint32_t index);

 private:
  // A touch, packed: when, by whom, and where in the kernel. Clock 0: nobody.
  struct Touch {
    uint32_t clock : 29 = 0;
    uint32_t rank : 3 = 0;
    uint16_t index = 0;
    uint8_t agent = 0;
    uint8_t lane_and_flags = 0;
    bool operator==(const Touch&) const = default;
    int lane() const { return lane_and_flags & kLaneMask; }
    bool has(uint8_t flag) const { return (lane_and_flags & flag) != 0; }
  };
  static constexpr uint8_t kLaneMask = 31;
  static constexpr uint8_t kAtomicFlag = 32, kAsyncFlag = 64;  // of a write
  static constexpr uint8_t kManyFlag = 32;                     // of a read: by several lanes
  static constexpr uint8_t kSetFlag = 64;  // by several agents: sets_[clock - 1]

  // The last write, and who has read since: the last of them if it is ordered after the others.
  struct Grain {
    Touch write, read;
  };

  bool is_before(const Warp& w, const Touch& t) const;
  // Not of the async proxy: a warp's, or its cp.async's.
  bool is_generic(const Touch& t) const { return t.agent < num_warps_ || t.agent > 3 * num_warps_; }
  bool is_harmless(const Warp& w, const Touch& write, Access kind, int lane) const;
  std::string name_of(const Touch& t) const;
  std::string byte_of(uint32_t grain) const;
  void check_write_before(Warp& w, const Touch& write, uint32_t grain, Access kind, int lane,
                          uint32_t index);
  void check_reads_before(Warp& w, const Touch& read, uint32_t grain, int lane, uint32_t index);
  void check_read_before(Warp& w, const Touch& read, uint32_t grain, int lane, uint32_t index);
  void add_reader(const Warp& w, Touch& known, const Touch& reader);
  void clear(Touch& read);
  uint32_t first_of(uint32_t offset) const { return offset >> grain_shift_; }
  uint32_t end_of(uint32_t offset, uint32_t bytes) const {
    return ((offset + bytes - 1) >> grain_shift_) + 1;
  }

  std::vector<Grain> grains_;
  std::vector<std::vector<Touch>> sets_;
  std::vector<uint32_t> free_sets_;
  const Cta* owner_ = nullptr;
  uint32_t grain_shift_ = 0, num_warps_ = 0;
};

}  // namespace ptxrun
