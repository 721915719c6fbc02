// Address spaces as kernels see them.
//
// Global addresses are numbers of the device: each allocation says where its bytes really lie. So a
// host pointer that was not handed over is not an address, and the host cannot read device data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ptxrun {

// Windows of the generic address space. A CTA of a cluster sees its peers' shared memory at its
// rank times kSharedStride.
inline constexpr uint64_t kSharedWindow = 1ull << 58;
inline constexpr uint64_t kSharedStride = 1ull << 24;
inline constexpr uint64_t kLocalWindow = 1ull << 59;
inline constexpr uint64_t kParamWindow = 1ull << 60;

struct Allocation {
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint8_t* data = nullptr;
  std::string name;
  // One flag per byte: written yet. Empty: all of it was, by whoever made it.
  std::vector<uint8_t> is_written;
  bool is_constant = false;  // an input, which nobody may write

  bool holds(uint64_t address, uint64_t count) const {
    return address - base <= bytes && count <= bytes - (address - base);
  }
};

class Memory {
 public:
  // Ranges must not overlap. References stay valid until remove().
  Allocation& add(Allocation allocation);
  void remove(uint64_t base);
  Allocation* find(uint64_t address, uint64_t count);
  // For messages: "3 bytes past out (96 bytes)".
  std::string describe(uint64_t address) const;

 private:
  std::map<uint64_t, Allocation> allocations_;
};

}  // namespace ptxrun
