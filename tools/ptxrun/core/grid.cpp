// The scheduler: CTAs, their warps, and what a hang looks like.

#include "core/grid.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/async.h"

namespace ptxrun {
namespace {

constexpr uint32_t kSlice = 4096;  // instructions of one warp before another has its turn
constexpr uint32_t kIdleRounds = 2000;
constexpr uint64_t kSpin = 1 << 20;  // instructions of a warp that only looks at memory
constexpr uint64_t kMaxReports = 100000;

}  // namespace

void Counter::operator+=(const Counter& other) {
  runs += other.runs;
  lanes += other.lanes;
  bytes += other.bytes;
  sectors += other.sectors;
  ideal_sectors += other.ideal_sectors;
  waves += other.waves;
  ideal_waves += other.ideal_waves;
}

Grid::Grid(const Module& module, const Kernel& kernel, Memory& memory, const Launch& launch,
           const Options& options, const void* parameters)
    : module(module),
      kernel(kernel),
      memory(memory),
      launch(launch),
      options(options),
      parameters(static_cast<const uint8_t*>(parameters)),
      counters(kernel.code.size()),
      last_hit(kernel.code.size()),
      random_state_(options.seed * 2654435761u + 1) {}

// PCG: the low bits of a linear congruence alone would repeat after a few draws.
uint32_t Grid::random() {
  random_state_ = random_state_ * 747796405u + 2891336453u;
  const uint32_t x = (random_state_ >> ((random_state_ >> 28) + 4) ^ random_state_) * 277803737u;
  return x >> 22 ^ x;
}

std::vector<uint32_t> Grid::order_of(uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (options.order == Order::kReverse) std::ranges::reverse(order);
  if (options.order == Order::kRandom) {
    for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  return order;
}

// One cluster of each of `sample` equal parts of the grid, so that no period of it is met.
std::vector<uint32_t> Grid::sample_of(uint32_t count) {
  if (options.sample == 0 || options.sample >= count) return order_of(count);
  std::vector<uint32_t> chosen(options.sample);
  for (uint64_t i = 0; i < chosen.size(); ++i) {
    const auto begin = static_cast<uint32_t>(i * count / chosen.size());
    const auto end = static_cast<uint32_t>((i + 1) * count / chosen.size());
    chosen[i] = begin + random() % (end - begin);
  }
  scale = static_cast<double>(count) / options.sample;
  return chosen;
}

void Grid::report(const Warp& w, const std::string& kind, uint32_t index, int lane,
                  const std::string& text) {
  report(w.cta->linear, w.id, kind, index, lane, text);
}

void Grid::report(uint64_t cta, uint64_t warp, const std::string& kind, uint32_t index, int lane,
                  const std::string& text) {
  Report& r = reports[{kind, index}];
  if (r.count++ == 0) {
    const auto& g = launch.grid;
    r.kind = kind;
    r.text = readable(kernel.name) + " " + module.source_of(kernel, index) + ", CTA " +
             std::to_string(cta % g[0]) + "," + std::to_string(cta / g[0] % g[1]) + "," +
             std::to_string(cta / g[0] / g[1]) + " warp " + std::to_string(warp) + " lane " +
             std::to_string(lane) + ": " + text;
  }
  if (r.count > kMaxReports) is_stopped = true;
}

void Grid::run() {
  const uint64_t cluster = launch.cluster_size(), num_clusters = launch.num_ctas() / cluster;
  const uint64_t most = std::max<uint64_t>({options.resident, cluster, 1}) / cluster * cluster;
  std::vector<uint32_t> order = sample_of(static_cast<uint32_t>(num_clusters));
  uint64_t next = order.size() * share / num_shares;
  order.resize(order.size() * (share + 1) / num_shares);
  std::vector<std::unique_ptr<Cta>> resident;
  uint32_t idle = 0;
  while (!is_stopped && (next < order.size() || !resident.empty())) {
    for (; next < order.size() && resident.size() + cluster <= most; ++next) {
      for (uint64_t rank = 0; rank < cluster; ++rank) {
        if (spare_.empty()) spare_.push_back(std::make_unique<Cta>());
        resident.push_back(std::move(spare_.back()));
        spare_.pop_back();
        resident.back()->rank = static_cast<uint32_t>(rank);
        start(*resident.back(), cta_index(order[next], static_cast<uint32_t>(rank)));
      }
      std::vector<Cta*> peers;
      for (size_t i = resident.size() - cluster; i < resident.size(); ++i) {
        peers.push_back(resident[i].get());
      }
      for (Cta* cta : peers) cta->peers = peers;
    }
    bool has_moved = false;
    for (const uint32_t i : order_of(static_cast<uint32_t>(resident.size()))) {
      has_moved |= step(*resident[i]);
    }
    std::erase_if(resident, [&](std::unique_ptr<Cta>& cta) {
      const auto is_done = [](const Cta* c) { return c->done == c->warps.size(); };
      if (!std::ranges::all_of(cta->peers, is_done) || !under_way.empty()) return false;
      uint64_t bytes = cta->most_bulk_in_flight;
      for (const Warp& w : cta->warps) bytes += w.most_in_flight;
      most_in_flight = std::max(most_in_flight, bytes);
      spare_.push_back(std::move(cta));
      return true;
    });
    const bool lands_any = options.landing == Landing::kRandom;
    if (!has_moved || (lands_any && random() % 4 == 0)) has_moved |= land_one();
    idle = has_moved ? 0 : idle + 1;
    const uint64_t most_reads = kSpin * resident.size() * ((launch.num_threads() + 31) / 32);
    if (idle > kIdleRounds || num_instructions - last_progress > most_reads ||
        num_instructions > options.max_instructions) {
      report_hang(resident, order.size() - next);
      is_stopped = true;
    }
  }
}

// The CTAs of a cluster are a box of the grid.
uint32_t Grid::cta_index(uint32_t cluster, uint32_t rank) const {
  const auto &g = launch.grid, &c = launch.cluster;
  const uint32_t nx = g[0] / c[0], ny = g[1] / c[1];
  const uint32_t x = cluster % nx * c[0] + rank % c[0];
  const uint32_t y = cluster / nx % ny * c[1] + rank / c[0] % c[1];
  const uint32_t z = cluster / nx / ny * c[2] + rank / c[0] / c[1];
  return x + g[0] * (y + g[1] * z);
}

void Grid::issue(std::function<void()> land) {
  if (options.landing == Landing::kEarliest) return land();
  under_way.push_back(std::move(land));
}

// Completes one copy under way: the oldest, or any.
bool Grid::land_one() {
  if (under_way.empty()) return false;
  const bool in_order = options.landing != Landing::kRandom;
  const auto one = under_way.begin() + (in_order ? 0 : random() % under_way.size());
  const std::function<void()> land = std::move(*one);
  under_way.erase(one);
  land();
  last_progress = num_instructions;
  return true;
}

void Grid::start(Cta& cta, uint32_t linear) {
  cta.grid = this;
  cta.linear = linear;
  const auto& g = launch.grid;
  cta.id = {linear % g[0], linear / g[0] % g[1], linear / g[0] / g[1]};
  cta.num_threads = launch.num_threads();
  cta.done = 0;
  cta.barriers = {};
  cta.mbarriers.clear();
  cta.writer_clock = cta.reader_clock = 0;
  cta.cluster_arrived = cta.cluster_phase = 0;
  cta.bulk_in_flight = cta.most_bulk_in_flight = 0;
  const uint32_t bytes = kernel.shared_bytes + launch.dynamic_shared;
  cta.shared.assign(bytes, 0xff);  // NaN in every float format
  const uint32_t num_warps = (cta.num_threads + kLanes - 1) / kLanes;
  if (options.checks) cta.shadow.reset(cta, bytes, kernel.shared_grain, num_warps);
  cta.fenced.assign(4 * num_warps + 2, 0);
  cta.cluster_arriving = cta.cluster_released = nullptr;
  cta.warps.resize(num_warps);
  for (uint32_t i = 0; i < num_warps; ++i) {
    Warp& w = cta.warps[i];
    std::vector<uint8_t> registers = std::move(w.registers), local = std::move(w.local);
    w = Warp{};
    w.registers = std::move(registers);
    w.local = std::move(local);
    w.cta = &cta;
    w.id = i;
    const uint32_t count = std::min<uint32_t>(kLanes, cta.num_threads - i * kLanes);
    w.live = count == kLanes ? kAllLanes : (1u << count) - 1;
    w.view.clocks.assign(4 * num_warps + 2, 0);
    w.view.clocks[i] = 1;
    w.registers = kernel.registers;
    w.local.assign(kLanes * kernel.local_bytes, 0xff);
    special_registers(cta, w);
  }
}

void Grid::special_registers(const Cta& cta, Warp& w) const {
  using S = SpecialRegisters;
  const auto set = [&](S::Index index, auto&& value) {
    auto* lanes = reinterpret_cast<uint32_t*>(w.registers.data() + S::offset(index));
    for (uint32_t lane = 0; lane < kLanes; ++lane) lanes[lane] = value(lane);
  };
  const auto same = [&](S::Index index, uint32_t value) {
    set(index, [&](uint32_t) { return value; });
  };
  std::memset(w.registers.data(), 0, S::kBytes);
  const auto& b = launch.block;
  set(S::kTidX, [&](uint32_t lane) { return (w.id * kLanes + lane) % b[0]; });
  set(S::kTidY, [&](uint32_t lane) { return (w.id * kLanes + lane) / b[0] % b[1]; });
  set(S::kTidZ, [&](uint32_t lane) { return (w.id * kLanes + lane) / b[0] / b[1]; });
  const auto three = [&](S::Index first, const std::array<uint32_t, 3>& values) {
    for (uint32_t i = 0; i < 3; ++i) same(static_cast<S::Index>(first + i), values[i]);
  };
  three(S::kNtidX, b);
  three(S::kCtaX, cta.id);
  three(S::kNctaX, launch.grid);
  set(S::kLane, [](uint32_t lane) { return lane; });
  same(S::kWarp, w.id);
  same(S::kNwarp, static_cast<uint32_t>(cta.warps.size()));
  set(S::kLaneEq, [](uint32_t lane) { return 1u << lane; });
  set(S::kLaneLt, [](uint32_t lane) { return (1u << lane) - 1; });
  set(S::kLaneLe, [](uint32_t lane) { return static_cast<uint32_t>((2ull << lane) - 1); });
  set(S::kLaneGt, [](uint32_t lane) { return ~static_cast<uint32_t>((2ull << lane) - 1); });
  set(S::kLaneGe, [](uint32_t lane) { return ~((1u << lane) - 1); });
  same(S::kSm, cta.linear % 132);
  same(S::kNsm, 132);
  same(S::kDynamicShared, launch.dynamic_shared);
  same(S::kTotalShared, static_cast<uint32_t>(cta.shared.size()));
  const auto& c = launch.cluster;
  same(S::kClusterRank, cta.rank);
  same(S::kClusterSize, c[0] * c[1] * c[2]);
  three(S::kClusterNctaX, c);
  for (uint32_t i = 0; i < 3; ++i) {
    same(static_cast<S::Index>(S::kClusterCtaX + i), cta.id[i] % c[i]);
    same(static_cast<S::Index>(S::kClusterX + i), cta.id[i] / c[i]);
    same(static_cast<S::Index>(S::kNclusterX + i), launch.grid[i] / c[i]);
  }
}

// Runs until the warp must wait, or its slice is over.
void Grid::step_warp(Warp& w) {
  w.state = WarpState::kReady;
  const auto clock = [&](SpecialRegisters::Index index) {
    const Ref r{SpecialRegisters::offset(index), 8, false};
    std::fill_n(w.lanes<uint64_t>(r), kLanes, num_instructions);
  };
  clock(SpecialRegisters::kClock64);
  clock(SpecialRegisters::kTimer);
  if (!w.schedule()) return settle(w);
  const Instruction* code = kernel.code.data();
  for (uint32_t i = 0; i < kSlice; ++i) {
    const Instruction& in = code[w.pc];
    uint32_t mask = w.active;
    if (in.has_predicate) {
      const uint32_t guard = w.mask({in.predicate, 0, false});
      mask &= in.is_negated ? ~guard : guard;
    }
    ++w.pc;
    ++num_instructions;
    // The branch back to a wait that fails again is no more work than the wait.
    if (!std::exchange(w.goes_round, false)) counters[in.index].run_by(mask);
    const bool has_products = !w.in_flight.empty() || !w.being_read.empty();
    if (mask != 0 && !(has_products && puts_off(w, in, mask))) in.run(w, in, mask);
    if (w.state != WarpState::kReady || is_stopped) return;
    if (w.active == 0) {
      if (!w.schedule()) return settle(w);
    } else if (w.pc >= w.next) {
      w.park(w.active, w.pc);
      w.schedule();
    }
  }
  w.park(w.active, w.pc);
  w.state = WarpState::kYield;
}

// An aligned barrier is for the whole warp: no lane may be at another one, or have gone past it.
static void check_alignment(Warp& w, const Instruction& in) {
  uint32_t here = 0;
  for_lanes(w.at_barrier, [&](int lane) {
    if (w.pcs[lane] == static_cast<int32_t>(in.index) + 1) here |= 1u << lane;
  });
  if (here == w.live && !w.has_lost_lanes) return;
  w.cta->grid->report(w, "divergent barrier", in.index, std::countr_zero(here),
                      "only some lanes of the warp are here");
}

// No lane can run: the warp is done, or all that is left of it is at a barrier.
void Grid::settle(Warp& w) {
  if (w.live == 0) {
    w.state = WarpState::kDone;
    last_progress = num_instructions;
    ++w.cta->done;
    finish_copies(w);
    finish_bulk(w);
    finish_products(w);
    if (w.cta->done == w.cta->warps.size()) finish_mbarriers(w);
    leave_barriers(*w.cta);
    leave_cluster_barrier(*w.cta);
  } else if (w.at_sync != 0) {
    report(w, "divergence", static_cast<uint32_t>(w.pcs[std::countr_zero(w.at_sync)]),
           std::countr_zero(w.at_sync), "the member mask names lanes that do not come");
    is_stopped = true;
  } else {
    const int lane = std::countr_zero(w.at_barrier);
    const Instruction& in = kernel.code[static_cast<uint32_t>(w.pcs[lane]) - 1];
    if (in.vector != 0) check_alignment(w, in);
    w.at_barrier = 0;
    w.has_lost_lanes = false;
    arrive(w, in, w.live);
  }
}

// Gives every warp of the CTA that can run a turn. True if anything but waiting was done.
bool Grid::step(Cta& cta) {
  bool has_moved = false;
  for (const uint32_t i : order_of(static_cast<uint32_t>(cta.warps.size()))) {
    Warp& w = cta.warps[i];
    if (w.state == WarpState::kClusterBarrier) pass_cluster_barrier(w);
    if (w.state != WarpState::kReady && w.state != WarpState::kYield) continue;
    w.has_waited = false;
    step_warp(w);
    has_moved |= !w.has_waited;
    if (is_stopped) return false;
  }
  return has_moved;
}

void Grid::report_hang(const std::vector<std::unique_ptr<Cta>>& resident, uint64_t num_waiting) {
  const std::string others =
      num_waiting == 0 ? "" : ", and " + std::to_string(num_waiting) + " more wait to be resident";
  for (const auto& cta : resident) {
    for (const Warp& w : cta->warps) {
      if (w.state == WarpState::kDone) continue;
      const int lane = w.live == 0 ? 0 : std::countr_zero(w.live);
      static constexpr const char* kStates[] = {"running", "waiting", "at a barrier",
                                                "at a cluster barrier", "done"};
      const auto at = static_cast<uint32_t>(std::max(w.pcs[lane] - 1, 0));
      report(w, "hang", at, lane,
             std::string("the warp is ") + kStates[static_cast<int>(w.state)] +
                 " and nothing can go on" + others);
    }
  }
}

}  // namespace ptxrun
