// The emulated device of this process: its memory, the modules that host code registered, launches.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"

namespace ptxrun {

// Bytes that host code must not touch: they are only an address. Device data lie elsewhere.
class Reserved {
 public:
  explicit Reserved(uint64_t bytes);
  ~Reserved();
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  uint64_t base() const { return base_; }

 private:
  uint64_t base_;
  uint64_t mapped_;
  uint64_t mapping_;
};

struct Image {
  int arch;
  std::string ptx;
};

// The PTX of one translation unit, for one or more architectures.
struct FatBinary {
  std::vector<Image> images;
  std::map<int, std::shared_ptr<Module>> modules;
};

// Sectors of a tensor that launches have touched, each launch once.
struct Touched {
  uint64_t read = 0;
  uint64_t written = 0;
};

// Sums over a kernel's launches; of those that ran a sample of their CTAs, as if all had run.
struct KernelStats {
  uint64_t launches = 0;
  uint64_t ctas = 0;
  uint64_t instructions = 0;
  uint64_t matrix = 0;
  uint64_t in_flight = 0;  // most bytes of asynchronous loads of a CTA
  Launch last;
  std::map<std::string, Touched> footprint;  // by tensor, with Options::footprint
  std::vector<Counter> counters;
  std::shared_ptr<const Module> module;  // which `kernel` is part of
  const Kernel* kernel = nullptr;
};

class Device {
 public:
  static Device& get();

  Options options;
  int arch = 80;

  // An address for memory of the host's own, by which it is released.
  uint64_t reserve(uint64_t storage_bytes);
  // A range of it that kernels see.
  void map(uint64_t base, void* data, uint64_t first, uint64_t bytes, const std::string& name,
           bool is_constant);
  // New memory; reads before writes are reported. nullptr data for sizes of 0.
  uint64_t allocate(uint64_t bytes, const std::string& name);
  void release(uint64_t base);
  // The same for a tensor that an op makes: it lives until release_temporaries().
  uint64_t allocate_temporary(uint64_t bytes);
  void release_temporaries();
  // Where an allocation's bytes lie; throws for an address that is none's.
  uint8_t* data(uint64_t address, uint64_t bytes);
  // By the host.
  void mark_written(uint64_t address, uint64_t bytes);
  // How many bytes of new memory nobody has written.
  uint64_t unwritten(uint64_t address, uint64_t bytes);

  // What is done to PTX before it is parsed: planted faults. Forgets the modules parsed so far.
  void set_edit(std::function<std::string(const std::string&)> edit);

  FatBinary* register_binary(const void* wrapper);
  void register_function(const void* host, FatBinary* binary, const char* name);
  void register_variable(const void* host, FatBinary* binary, const char* name);
  const Allocation* variable(const void* host);
  const Kernel& kernel(const void* host);
  std::string launch(const void* host, const Launch& launch, void* const* arguments);
  std::string launch(const std::shared_ptr<Module>& module, const Kernel& kernel,
                     const Launch& launch, const uint8_t* parameters);
  std::string launch(const std::shared_ptr<Module>& module, const Kernel& kernel,
                     const Launch& launch, void* const* arguments);
  uint32_t& dynamic_limit(const void* host) { return dynamic_limits_[host]; }

  // What was launched is over: no later launch may run beside it.
  void finish_launches() { last_touched_ = nullptr; }

  void add_report(const std::string& kind, const std::string& text) {
    reports_.push_back({kind, text, 1});
  }
  std::vector<Report> take_reports();
  std::map<std::string, KernelStats>& stats() { return stats_; }
  const std::vector<std::unique_ptr<FatBinary>>& binaries() const { return binaries_; }
  Memory& memory() { return memory_; }

 private:
  struct Symbol {
    FatBinary* binary;
    std::string name;
  };
  struct Mapping {
    std::unique_ptr<Reserved> reserved;
    std::vector<uint64_t> ranges;
    std::vector<uint8_t> bytes;
  };

  void add_stats(const std::shared_ptr<Module>& module, const Kernel& kernel, const Launch& launch,
                 const Grid& grid);
  const std::shared_ptr<Module>& module_of(FatBinary& binary);
  std::string check(const Kernel& kernel, const Launch& launch) const;

  Memory memory_;
  std::function<std::string(const std::string&)> edit_;
  std::vector<std::unique_ptr<FatBinary>> binaries_;
  std::map<const void*, Symbol> functions_;
  std::map<const void*, Symbol> variables_;
  std::map<const void*, uint32_t> dynamic_limits_;
  std::map<uint64_t, Mapping> mappings_;
  std::vector<uint64_t> temporaries_;
  std::shared_ptr<const GlobalShadow> last_touched_;
  const void* last_stream_ = nullptr;
  std::vector<Report> reports_;
  std::map<std::string, KernelStats> stats_;
};

}  // namespace ptxrun
