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
  void reset(const Cta& owner, uint32_t bytes, uint32_t num_warps);
  bool is_on() const { return !writes_.empty(); }
  void access(Warp& w, uint32_t offset, uint32_t bytes, Access kind, int lane, uint32_t index);
  // A bulk copy is complete: the bytes are the async proxy's, `clock` its own.
  void land_by_proxy(uint32_t offset, uint32_t bytes, uint32_t clock, uint32_t index);
  // The async proxy reads for a warp: as `agent`, until that warp has waited for `clock`.
  void read_by_proxy(Warp& w, uint32_t offset, uint32_t bytes, uint32_t agent, uint32_t clock,
                     uint32_t index);
  // An async copy is complete: from here on its bytes are the waiting warp's plain writes.
  void land(Warp& w, uint32_t offset, uint32_t bytes, int lane, uint32_t index);

 private:
  // The last write of a byte, packed: clock, warp, lane, instruction, flags.
  struct Cell {
    uint32_t clock : 29 = 0;
    uint32_t rank : 3 = 0;
    uint16_t index = 0;
    uint8_t warp = 0;
    uint8_t lane_and_flags = 0;
    bool operator==(const Cell&) const = default;
  };
  static constexpr uint8_t kLaneMask = 31, kAtomicFlag = 32, kAsyncFlag = 64, kWrittenFlag = 128;
  static constexpr uint8_t kManyLanes = 255;

  struct Reader {
    uint32_t clock = 0;
    uint16_t index = 0;
    uint8_t lane = 0;
    bool operator==(const Reader&) const = default;
  };

  bool is_before(const Warp& w, uint32_t rank, uint32_t agent, uint32_t clock) const;
  std::string name_of(uint32_t rank, uint32_t agent) const;
  uint32_t reader_of(uint32_t rank, uint32_t agent) const;  // its place in a set
  void check_write_before(Warp& w, const Cell& cell, uint32_t offset, Access kind, int lane,
                          uint32_t index);
  void check_reads_before(Warp& w, uint32_t set, uint32_t offset, int lane, uint32_t index);
  uint32_t with_reader(uint32_t set, uint32_t warp, Reader reader);

  std::vector<Cell> writes_;
  std::vector<uint32_t> reads_;               // a set of readers for each byte; 0: none
  std::vector<std::vector<Reader>> readers_;  // of each set, by rank and agent
  const Cta* owner_ = nullptr;
  uint32_t num_warps_ = 0;
  uint32_t memo_set_ = 0, memo_warp_ = 0, memo_result_ = 0;
  Reader memo_reader_;
};

}  // namespace ptxrun
