// A launch: its CTAs, what they share, and what was found.
#pragma once

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/global_race.h"
#include "core/memory.h"
#include "core/race.h"
#include "core/warp.h"

namespace ptxrun {

// What went wrong, once per place, with a count.
struct Report {
  std::string kind;
  std::string text;
  uint64_t count = 0;
};

// What one instruction did.
struct Counter {
  uint64_t runs = 0;
  uint64_t lanes = 0;
  uint64_t bytes = 0;          // asked for
  uint64_t sectors = 0;        // of 32 bytes, global memory
  uint64_t ideal_sectors = 0;  // for the same distinct bytes
  uint64_t waves = 0;          // shared memory
  uint64_t ideal_waves = 0;

  void operator+=(const Counter& other);
  void run_by(uint32_t mask) {
    ++runs;
    lanes += static_cast<uint64_t>(std::popcount(mask));
  }
  void take_back(uint32_t mask) {
    --runs;
    lanes -= static_cast<uint64_t>(std::popcount(mask));
  }
};

// Which 32-byte sectors of an allocation a launch has read and written.
struct Footprint {
  std::string name;
  uint64_t sectors = 0;
  std::vector<bool> read, written;

  void operator+=(const Footprint& other);
};

enum class MmaMode : uint8_t { kChained, kBlockTruncated, kPermuted };
enum class Landing : uint8_t { kLatest, kEarliest, kRandom };
enum class Order : uint8_t { kForward, kReverse, kRandom };

struct Options {
  bool checks = true;
  bool uninitialised = true;  // reads of unwritten memory; some right kernels prefetch it in vain
  bool proxy_fences = true;   // fence.proxy.async before the async proxy reads shared memory
  bool counters = true;
  bool by_grid = false;    // launches of other grids are counted apart, as kernel@CTAs
  bool footprint = false;  // which sectors a launch touches: the model's HBM traffic
  uint32_t sample = 0;     // clusters to run, spread over the grid; counters are scaled. 0: all
  Order order = Order::kForward;
  uint32_t seed = 0;
  uint32_t resident = 1;                   // CTAs that run at the same time, at least a cluster
  uint64_t max_instructions = 1ull << 34;  // of all warps: more is a hang
  MmaMode mma = MmaMode::kChained;
  bool perturb_approx = true;
  uint32_t threads = std::thread::hardware_concurrency();  // that independent CTAs run on
  Landing landing = Landing::kLatest;
};

struct Launch {
  std::array<uint32_t, 3> grid{1, 1, 1};
  std::array<uint32_t, 3> block{1, 1, 1};
  std::array<uint32_t, 3> cluster{1, 1, 1};
  uint32_t dynamic_shared = 0;
  const void* stream = nullptr;
  bool is_programmatic = false;  // may run beside the launch before it in the stream

  uint32_t num_threads() const { return block[0] * block[1] * block[2]; }
  uint64_t num_ctas() const { return uint64_t{grid[0]} * grid[1] * grid[2]; }
  uint64_t cluster_size() const { return uint64_t{cluster[0]} * cluster[1] * cluster[2]; }
};

struct Barrier {
  uint32_t arrived = 0;   // whole warps, as threads
  uint32_t threads = 0;   // that there really are
  uint32_t expected = 0;  // 0: nobody is there
  uint32_t votes = 0;     // bar.red
  uint32_t waiting = 0;   // warps, one bit each
  View view;
};

// What is known of an mbarrier beside its 64 bits.
struct MbarrierState {
  uint32_t initialiser = 0, init_clock = 0;  // which warp of its CTA, and when
  bool is_fenced = false;                    // the async proxy may know it
  std::optional<uint32_t> fenced_phase;      // and the cluster, behind that barrier.cluster
  uint32_t expected_at = 0;                  // the instruction that last expected bytes

  // What a wait makes visible: the arrivals of the phase under way, of the complete one.
  View arriving, complete;
  // An instruction whose bytes have arrived in those phases, and no wait has succeeded since.
  std::optional<uint32_t> arriving_copy, complete_copy;
  std::vector<std::pair<uint32_t, uint64_t>> copied;  // warp, bytes under way until a wait
};

struct Grid;

struct Cta {
  Grid* grid = nullptr;
  uint32_t linear = 0;
  std::array<uint32_t, 3> id{};
  uint32_t rank = 0;  // in its cluster
  uint32_t num_threads = 0;
  std::vector<uint8_t> shared;
  SharedShadow shadow;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  std::map<uint32_t, MbarrierState> mbarriers;  // by offset
  std::vector<uint32_t> fenced;  // up to which clock of each agent fence.proxy.async covers it
  uint32_t writer_clock = 0;     // of the async proxy
  uint32_t reader_clock = 0;

  std::vector<Cta*> peers;                   // of the cluster, by rank
  uint32_t cluster_arrived = 0;              // of rank 0 only: warps at barrier.cluster
  uint32_t cluster_phase = 0;                // of rank 0 only
  Known cluster_arriving, cluster_released;  // of rank 0 only
  uint32_t done = 0;

  uint64_t bulk_in_flight = 0;  // bytes of bulk loads issued, not landed
  uint64_t most_bulk_in_flight = 0;
};

struct Grid {
  Grid(const Module& module, const Kernel& kernel, Memory& memory, const Launch& launch,
       const Options& options, const void* parameters);

  void run();

  // Records a report; the place is the warp's current instruction.
  void report(const Warp& w, const std::string& kind, uint32_t index, int lane,
              const std::string& text);
  void report(uint64_t cta, uint64_t warp, const std::string& kind, uint32_t index, int lane,
              const std::string& text);
  uint32_t random();
  void issue(std::function<void()> land);  // which happens now, or some time later

  const Module& module;
  const Kernel& kernel;
  Memory& memory;
  const Launch& launch;
  const Options& options;
  const uint8_t* parameters;
  std::vector<Counter> counters;
  std::vector<Allocation*> last_hit;  // of each instruction
  std::map<std::pair<std::string, uint32_t>, Report> reports;
  uint64_t num_instructions = 0;
  uint64_t num_matrix = 0;
  uint64_t last_progress = 0;                // when memory was last written, or a barrier passed
  std::map<uint64_t, Footprint> footprints;  // by address
  uint64_t most_in_flight = 0;               // bytes of asynchronous loads of one CTA
  double scale = 1;                          // clusters of the grid to those that run
  bool is_stopped = false;
  uint64_t share = 0, num_shares = 1;           // of the clusters, in their order
  std::deque<std::function<void()>> under_way;  // copies issued, not landed
  GlobalShadow touched;
  Locations locations;
  // Of the grid before, where this one may run beside it until griddepcontrol.wait.
  std::shared_ptr<const GlobalShadow> before;

 private:
  void start(Cta& cta, uint32_t linear);
  uint32_t cta_index(uint32_t cluster, uint32_t rank) const;
  bool land_one();
  void step_warp(Warp& w);
  void settle(Warp& w);
  bool step(Cta& cta);
  std::vector<uint32_t> order_of(uint32_t count);
  std::vector<uint32_t> sample_of(uint32_t count);
  void special_registers(const Cta& cta, Warp& w) const;
  void report_hang(const std::vector<std::unique_ptr<Cta>>& resident, uint64_t num_waiting);

  uint32_t random_state_;
  std::vector<std::unique_ptr<Cta>> spare_;
};

// A whole warp comes to bar.sync, bar.arrive or bar.red.
void arrive(Warp& w, const Instruction& in, uint32_t mask);
void leave_cluster_barrier(Cta& cta);
void leave_barriers(Cta& cta);  // a warp is done: nobody waits for it any more

}  // namespace ptxrun
