#include "common/cpu/isa.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace dflash {

static constexpr Isa kAll[]{Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

const char* isa_name(Isa isa) {
  static constexpr const char* kNames[]{"portable", "avx2", "avx512", "avx512bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

std::string isa_names() {
  std::string names;
  for (const Isa isa : kAll) {
    if (has_isa(isa)) names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  }
  return names;
}

static std::optional<Isa> isa_named(std::string_view name) {
  for (const Isa isa : kAll) {
    if (name == isa_name(isa) && has_isa(isa)) return isa;
  }
  return std::nullopt;
}

static Isa initial_isa() {
  if (const char* name = std::getenv("DFLASH_CPU_ISA")) {
    if (const auto isa = isa_named(name)) return *isa;
    throw std::runtime_error("DFLASH_CPU_ISA must be one of " + isa_names() + ", got " + name);
  }
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

bool pin_cpu_isa(std::string_view name) {
  const auto isa = isa_named(name);
  if (isa) current_isa() = *isa;
  return isa.has_value();
}

}  // namespace dflash

// For python/dflash_ops/_isa.py and other callers without C++.
extern "C" {

[[gnu::visibility("default")]] const char* dflash_cpu_isas() {
  static const std::string names = dflash::isa_names();
  return names.c_str();
}

// "" if DFLASH_CPU_ISA names none that this machine has.
[[gnu::visibility("default")]] const char* dflash_cpu_isa() {
  try {
    return dflash::isa_name(dflash::cpu_isa());
  } catch (const std::runtime_error&) {
    return "";
  }
}

[[gnu::visibility("default")]] bool dflash_pin_cpu_isa(const char* name) {
  try {
    return dflash::pin_cpu_isa(name);
  } catch (const std::runtime_error&) {
    return false;
  }
}
}
