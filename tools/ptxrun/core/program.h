// A kernel ready to run: every name resolved, every instruction a function and its operands.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/order.h"
#include "core/ptx.h"

namespace ptxrun {

struct Warp;
struct Instruction;

// Runs one instruction for the lanes of `mask`.
using Handler = void (*)(Warp&, const Instruction&, uint32_t mask);

// Where an operand lies in a warp's register file. 32 lanes of `bytes` each; a predicate is one
// 32-bit mask (bytes == 0). Constants and special registers lie there too.
struct Ref {
  uint32_t offset = 0;
  uint8_t bytes = 0;
  bool is_inverted = false;  // !p
};

// What every step looks at comes first.
struct Instruction {
  Handler run = nullptr;
  std::span<const Ref> refs;  // of Kernel::refs
  int64_t value = 0;          // address offset, immediate, branch target
  uint32_t index = 0;         // its own place: what counters and reports are kept by
  uint32_t predicate = 0;     // offset of the guard
  bool has_predicate = false;
  bool is_negated = false;
  bool is_move = false;    // may copy the sums of a wgmma under way
  bool is_matrix = false;  // wgmma: may touch them
  Space space = Space::kGeneric;
  uint8_t bytes = 0;   // of one element
  uint8_t vector = 1;  // elements per lane
  uint8_t mode = 0;    // meaning is the handler's own
  bool flag = false;
  Strength strength = Strength::kWeak;
  bool is_wide = true;   // a strong access: of the GPU's scope, not the CTA's
  uint64_t written = 0;  // which of the refs are destinations, one bit each
  std::vector<int64_t> table;
};

struct Parameter {
  uint32_t offset;
  uint32_t bytes;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Ref> refs;  // of all instructions, in their order
  const Function* text = nullptr;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  std::vector<uint8_t> registers;  // a fresh register file, constants in place
  uint32_t shared_bytes = 0;       // static
  uint32_t shared_grain = 16;      // bytes of the smallest access to shared memory
  uint32_t local_bytes = 0;        // per thread
  bool is_divisible = false;       // its CTAs may run on several threads
};

// Offsets of special registers, the same in every kernel.
struct SpecialRegisters {
  static constexpr uint32_t kSlot = 256;  // room for 64-bit lanes
  enum Index : uint32_t {
    kTidX,
    kTidY,
    kTidZ,
    kNtidX,
    kNtidY,
    kNtidZ,
    kCtaX,
    kCtaY,
    kCtaZ,
    kNctaX,
    kNctaY,
    kNctaZ,
    kLane,
    kWarp,
    kNwarp,
    kLaneEq,
    kLaneLt,
    kLaneLe,
    kLaneGt,
    kLaneGe,
    kSm,
    kNsm,
    kClock,
    kClock64,
    kTimer,
    kDynamicShared,
    kTotalShared,
    kClusterRank,
    kClusterSize,
    kClusterCtaX,
    kClusterCtaY,
    kClusterCtaZ,
    kClusterNctaX,
    kClusterNctaY,
    kClusterNctaZ,
    kClusterX,
    kClusterY,
    kClusterZ,
    kNclusterX,
    kNclusterY,
    kNclusterZ,
    kGrid,
    kZero32,
    kCount
  };
  static constexpr uint32_t offset(Index i) { return i * kSlot; }
  static constexpr uint32_t kBytes = kCount * kSlot;
};

class Module {
 public:
  // Places the module's variables in memory. Kernels are decoded when first asked for.
  Module(std::string_view ptx, Memory& memory);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const ModuleText& text() const { return text_; }
  const Kernel& kernel(const std::string& name);
  const Allocation* variable(const std::string& name) const;
  std::string source_of(const Kernel& kernel, uint32_t index) const;

 private:
  void relocate(const std::string& name, const Variable& variable);

  ModuleText text_;
  Memory& memory_;
  std::map<std::string, std::vector<uint8_t>> bytes_;
  std::map<std::string, Allocation> variables_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

// The parts of an opcode, which dots separate; and the first parts that are known.
std::vector<std::string> split(const std::string& opcode);
std::vector<std::string> instruction_names();

// Demangled, and cut to what fits a message.
std::string readable(const std::string& name);

// No CTA can see what another one has done, but by a race: each may run on a thread of its own.
// Defined in parallel.cpp.
bool is_divisible(const Function& function);

// Defined in decode.cpp.
std::unique_ptr<Kernel> decode(const Module& module, const Function& function);

}  // namespace ptxrun
