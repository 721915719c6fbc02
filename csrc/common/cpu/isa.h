// Which CPU instruction set the kernels use: chosen once per process, the same for every op.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dflash {

enum class Isa : int32_t {  // each contains the former
  kPortable,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmx,  // a device class of its own for products of bf16
};

// The newest that this machine has, unless DFLASH_CPU_ISA or pin_cpu_isa names another.
// Throws std::runtime_error if DFLASH_CPU_ISA names none that it has.
Isa cpu_isa();

bool pin_cpu_isa(std::string_view name);  // false: this machine has none of that name
const char* isa_name(Isa isa);
std::string isa_names();  // those that this machine has, oldest first, with ", " between

// The one of three that the instruction set in use takes.
template <class T>
static const T& of_isa(const T& portable, const T& avx2, const T& avx512) {
  const Isa isa = cpu_isa();
  return isa >= Isa::kAvx512 ? avx512 : isa == Isa::kAvx2 ? avx2 : portable;
}

// Of the file for this architecture (isa_x86.cpp, isa_generic.cpp).
bool has_isa(Isa isa);
uint32_t flush_denormals();  // turns FTZ and DAZ on; returns what restore_denormals wants back
void restore_denormals(uint32_t mode);

// Denormals count as zero while this lives, as the bf16 dot instruction has it (law L1). The calls
// are opaque, so no arithmetic on memory is moved across them.
struct FlushDenormals {
  uint32_t mode = flush_denormals();

  FlushDenormals() = default;
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
  ~FlushDenormals() { restore_denormals(mode); }
};

}  // namespace dflash
