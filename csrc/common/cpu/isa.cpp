#include "common/cpu/isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace dflash {

static constexpr Isa kAll[]{Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

std::string isa_name(Isa isa) {
  static constexpr const char* kNames[]{"portable", "avx2", "avx512", "avx512bf16"};
  return kNames[static_cast<int>(isa)];
}

std::string isa_names() {
  std::string names;
  for (const Isa isa : kAll) {
    if (has_isa(isa)) names += (names.empty() ? "" : ", ") + isa_name(isa);
  }
  return names;
}

static Isa isa_named(std::string_view name) {
  for (const Isa isa : kAll) {
    if (isa_name(isa) == name && has_isa(isa)) return isa;
  }
  throw std::runtime_error("cpu_isa: DFLASH_CPU_ISA must be one of " + isa_names() + ", got " +
                           std::string(name));
}

static Isa initial_isa() {
  if (const char* name = std::getenv("DFLASH_CPU_ISA")) return isa_named(name);
  Isa newest = Isa::kPortable;
  for (const Isa isa : kAll) {
    if (has_isa(isa)) newest = isa;
  }
  return newest;
}

static std::atomic<Isa>& current_isa() {
  static std::atomic<Isa> isa{initial_isa()};
  return isa;
}

Isa cpu_isa() { return current_isa().load(std::memory_order_relaxed); }

void pin_cpu_isa(std::string_view name) { current_isa() = isa_named(name); }

}  // namespace dflash
