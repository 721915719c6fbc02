#include "host/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace ptxrun {
namespace {

constexpr uint64_t kRedZone = 1 << 16;

uint64_t page_up(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Containers that nvcc embeds: a header, then one entry per architecture.
struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const uint8_t* data;
};
struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;
};
struct Entry {
  uint16_t kind;  // 1: PTX
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes;
  uint32_t unknown;
  uint16_t minor, major;
  uint32_t arch;
};

}  // namespace

Reserved::Reserved(uint64_t bytes) : mapped_(page_up(bytes) + 2 * kRedZone) {
  void* p = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error("no address space for " + std::to_string(bytes) + " bytes");
  mapping_ = reinterpret_cast<uint64_t>(p);
  base_ = mapping_ + kRedZone;
}

Reserved::~Reserved() { munmap(reinterpret_cast<void*>(mapping_), mapped_); }

Device& Device::get() {
  static Device* device = new Device;  // outlives the libraries that unregister at exit
  return *device;
}

uint64_t Device::reserve(uint64_t storage_bytes) {
  auto reserved = std::make_unique<Reserved>(storage_bytes);
  const uint64_t base = reserved->base();
  mappings_[base].reserved = std::move(reserved);
  return base;
}

void Device::map(uint64_t base, void* data, uint64_t first, uint64_t bytes, const std::string& name,
                 bool is_constant) {
  memory_.add({base + first, bytes, static_cast<uint8_t*>(data) + first, name, {}, is_constant});
  mappings_.at(base).ranges.push_back(base + first);
}

uint64_t Device::allocate(uint64_t bytes, const std::string& name) {
  auto reserved = std::make_unique<Reserved>(bytes);
  const uint64_t base = reserved->base();
  Mapping& m = mappings_[base];
  m.reserved = std::move(reserved);
  m.bytes.resize(bytes);  // NaN in every float format, and no integer that a kernel may write
  for (uint64_t i = 0; i < bytes; ++i) m.bytes[i] = i % 2 == 0 ? 0xa5 : 0xff;
  m.ranges.push_back(base);
  memory_.add({base, bytes, m.bytes.data(), name,
               options.checks ? std::vector<uint8_t>(bytes, 0) : std::vector<uint8_t>()});
  return base;
}

void Device::release(uint64_t base) {
  finish_launches();
  const auto found = mappings_.find(base);
  if (found == mappings_.end()) throw Error("released twice, or never allocated");
  for (const uint64_t range : found->second.ranges) memory_.remove(range);
  mappings_.erase(found);
}

uint64_t Device::allocate_temporary(uint64_t bytes) {
  temporaries_.push_back(allocate(bytes, "a new tensor"));
  return temporaries_.back();
}

void Device::release_temporaries() {
  for (const uint64_t base : std::exchange(temporaries_, {})) release(base);
}

uint8_t* Device::data(uint64_t address, uint64_t bytes) {
  Allocation* found = memory_.find(address, bytes);
  if (found == nullptr) throw Error("not device memory: " + memory_.describe(address));
  return found->data + (address - found->base);
}

void Device::mark_written(uint64_t address, uint64_t bytes) {
  Allocation* a = memory_.find(address, bytes);
  if (a == nullptr || a->is_written.empty()) return;
  std::fill_n(a->is_written.begin() + static_cast<int64_t>(address - a->base), bytes, 1);
}

void Device::set_edit(std::function<std::string(const std::string&)> edit) {
  edit_ = std::move(edit);
  stats_.clear();
  finish_launches();
  for (auto& binary : binaries_) binary->modules.clear();
}

uint64_t Device::unwritten(uint64_t address, uint64_t bytes) {
  const Allocation* found = memory_.find(address, bytes);
  if (found == nullptr || found->is_written.empty()) return 0;
  const auto first = found->is_written.begin() + static_cast<int64_t>(address - found->base);
  return static_cast<uint64_t>(std::count(first, first + static_cast<int64_t>(bytes), 0));
}

FatBinary* Device::register_binary(const void* wrapper) {
  auto binary = std::make_unique<FatBinary>();
  const uint8_t* at = static_cast<const Wrapper*>(wrapper)->data;
  const auto* header = reinterpret_cast<const Header*>(at);
  const uint8_t* end = at + header->header_bytes + header->bytes;
  for (at += header->header_bytes; at < end;) {
    const auto* entry = reinterpret_cast<const Entry*>(at);
    if (entry->kind == 1 && entry->compressed_bytes == 0) {
      const auto* text = reinterpret_cast<const char*>(at + entry->header_bytes);
      const size_t length = strnlen(text, entry->bytes);
      binary->images.push_back({static_cast<int>(entry->arch), std::string(text, length)});
    }
    at += entry->header_bytes + entry->bytes;
  }
  binaries_.push_back(std::move(binary));
  return binaries_.back().get();
}

void Device::register_function(const void* host, FatBinary* binary, const char* name) {
  functions_[host] = {binary, name};
}

void Device::register_variable(const void* host, FatBinary* binary, const char* name) {
  variables_[host] = {binary, name};
}

// The newest PTX that the emulated architecture can run.
const std::shared_ptr<Module>& Device::module_of(FatBinary& binary) {
  std::shared_ptr<Module>& module = binary.modules[arch];
  if (!module) {
    const Image* best = nullptr;
    for (const Image& image : binary.images) {
      if (image.arch <= arch && (best == nullptr || best->arch < image.arch)) best = &image;
    }
    if (best == nullptr) {
      throw Error("no PTX for sm_" + std::to_string(arch) +
                  " (nvcc needs --no-compress and -gencode "
                  "arch=compute_..,code=compute_..)");
    }
    module = std::make_shared<Module>(edit_ ? edit_(best->ptx) : best->ptx, memory_);
  }
  return module;
}

const Allocation* Device::variable(const void* host) {
  const auto found = variables_.find(host);
  if (found == variables_.end()) return nullptr;
  return module_of(*found->second.binary)->variable(found->second.name);
}

const Kernel& Device::kernel(const void* host) {
  const auto found = functions_.find(host);
  if (found == functions_.end()) throw Error("not a kernel");
  return module_of(*found->second.binary)->kernel(found->second.name);
}

std::string Device::launch(const void* host, const Launch& launch, void* const* arguments) {
  try {
    const Kernel& k = kernel(host);
    const auto limit = dynamic_limits_.find(host);
    const uint32_t most = limit == dynamic_limits_.end() ? 48 << 10 : limit->second;
    if (launch.dynamic_shared + k.shared_bytes > std::max(most + k.shared_bytes, 48u << 10)) {
      throw Error(k.name + ": dynamic shared memory beyond the kernel's attribute");
    }
    return this->launch(module_of(*functions_[host].binary), k, launch, arguments);
  } catch (const std::exception& error) {
    add_report("launch", error.what());
    return error.what();
  }
}

std::string Device::launch(const std::shared_ptr<Module>& module, const Kernel& kernel,
                           const Launch& launch, void* const* arguments) {
  std::vector<uint8_t> parameters(kernel.parameter_bytes);
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const Parameter& p = kernel.parameters[i];
    std::memcpy(parameters.data() + p.offset, arguments[i], p.bytes);
  }
  return this->launch(module, kernel, launch, parameters.data());
}

std::string Device::check(const Kernel& kernel, const Launch& launch) const {
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  const uint64_t ctas = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  const uint64_t shared = kernel.shared_bytes + launch.dynamic_shared;
  const uint64_t most = arch >= 90 ? 227 << 10 : 163 << 10;
  if (threads == 0 || threads > 1024 || threads > kernel.text->max_threads) return "block size";
  if (ctas == 0 || launch.grid[1] > 65535 || launch.grid[2] > 65535) return "grid size";
  if (shared > most) return "shared memory: " + std::to_string(shared);
  for (int i = 0; i < 3; ++i) {
    if (launch.grid[i] % launch.cluster[i] != 0) return "grid is not a multiple of the cluster";
  }
  if (launch.cluster_size() > 8) return "a cluster has 8 CTAs at most";
  return "";
}

std::string Device::launch(const std::shared_ptr<Module>& module, const Kernel& kernel,
                           const Launch& asked, const uint8_t* parameters) {
  Launch launch = asked;
  if (kernel.text->cluster[0] != 0) launch.cluster = kernel.text->cluster;
  if (const std::string wrong = check(kernel, launch); !wrong.empty()) {
    add_report("launch", kernel.name + ": " + wrong);
    return wrong;
  }
  const bool follows = launch.is_programmatic && launch.stream == last_stream_;
  const std::unique_ptr<Grid> grid = run_launch(*module, kernel, memory_, launch, options,
                                                parameters, follows ? last_touched_ : nullptr);
  last_touched_ = std::make_shared<const GlobalShadow>(std::move(grid->touched));
  last_stream_ = launch.stream;
  for (auto& [where, report] : grid->reports) reports_.push_back(std::move(report));
  add_stats(module, kernel, launch, *grid);
  return grid->is_stopped ? "stopped" : "";
}

void Device::add_stats(const std::shared_ptr<Module>& module, const Kernel& kernel,
                       const Launch& launch, const Grid& grid) {
  const auto scaled = [&](uint64_t count) {
    return static_cast<uint64_t>(std::llround(static_cast<double>(count) * grid.scale));
  };
  std::string name = kernel.name;
  if (options.by_grid) name.append("@").append(std::to_string(launch.num_ctas()));
  KernelStats& stats = stats_[name];
  stats.module = module;
  stats.kernel = &kernel;
  stats.last = launch;
  ++stats.launches;
  stats.ctas += launch.num_ctas();
  stats.instructions += scaled(grid.num_instructions);
  stats.matrix += scaled(grid.num_matrix);
  stats.in_flight = std::max(stats.in_flight, grid.most_in_flight);
  // CTAs that did not run touch as many sectors as those that did, but none twice.
  for (const auto& [base, f] : grid.footprints) {
    const auto count = [&](const std::vector<bool>& touched) {
      const auto n = static_cast<uint64_t>(std::count(touched.begin(), touched.end(), true));
      return std::min(scaled(n), f.sectors);
    };
    Touched& sum = stats.footprint[f.name];
    sum = {sum.read + count(f.read), sum.written + count(f.written)};
  }
  stats.counters.resize(grid.counters.size());
  for (size_t i = 0; i < grid.counters.size(); ++i) {
    const Counter& c = grid.counters[i];
    stats.counters[i] +=
        {scaled(c.runs),          scaled(c.lanes), scaled(c.bytes),      scaled(c.sectors),
         scaled(c.ideal_sectors), scaled(c.waves), scaled(c.ideal_waves)};
  }
}

std::vector<Report> Device::take_reports() { return std::exchange(reports_, {}); }

}  // namespace ptxrun
