// What the instruction tables use to turn a statement into an Instruction.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/program.h"

namespace ptxrun {

class Decoder;
using DecodeFn = std::function<void(Decoder&)>;
using InstructionTable = std::unordered_map<std::string, DecodeFn>;

// One for each class of instructions, in the file that runs them.
void add_integer(InstructionTable& table);
void add_extended(InstructionTable& table);
void add_compare(InstructionTable& table);
void add_float(InstructionTable& table);
void add_packed(InstructionTable& table);
void add_convert(InstructionTable& table);
void add_control(InstructionTable& table);
void add_memory(InstructionTable& table);
void add_exchange(InstructionTable& table);
void add_matrix(InstructionTable& table);
void add_copy(InstructionTable& table);
void add_mbarrier(InstructionTable& table);
void add_cluster(InstructionTable& table);
void add_wgmma(InstructionTable& table);

class Decoder {
 public:
  Decoder(const Module& module, const Function& function, Kernel& kernel);
  void run();

  // The statement at hand and its opcode, split at the dots.
  const Statement& statement() const { return *statement_; }
  const std::vector<std::string>& parts() const { return parts_; }
  bool has(std::string_view part) const;
  Type type(size_t from_end = 0) const;  // the last part, the one before it, ...
  size_t count() const { return statement_->operands.size(); }
  const Operand& operand(size_t i) const;
  Instruction& out() { return *instruction_; }
  [[noreturn]] void fail(const std::string& what) const;

  // Each appends to the instruction's refs; what comes next is a destination.
  void writes() { instruction_->written |= 1ull << refs_.size(); }
  void destination(size_t i, Type type);
  void source(size_t i, Type type);
  void any(const Operand& operand, Type type);  // a register of any width, or a constant
  void ref(const Operand& operand, Type type, bool is_any_width);
  void predicate_out(const std::string& name);
  void predicate_in(const Operand& operand);
  void address(const Operand& operand);       // a ref and `value`
  void touches(Space space, uint32_t bytes);  // how much at a time
  void unused() { refs_.push_back({}); }

  Type register_type(const std::string& name) const;
  bool is_local(const std::string& name) const;  // a variable of the function itself
  int64_t integer(size_t i) const;               // an operand that must be a literal
  uint32_t target(const std::string& label) const;
  const std::vector<std::string>& branch_targets(const std::string& label) const;
  Space space_of(size_t first_part = 1) const;

 private:
  const DecodeFn* entry() const;
  void layout_parameters();
  void layout_variables();
  void layout_registers();
  Ref constant(uint64_t bits, uint8_t bytes);
  bool symbol(const std::string& name, uint64_t& value) const;

  const Module& module_;
  const Function& function_;
  Kernel& kernel_;
  const Statement* statement_ = nullptr;
  std::vector<std::string> parts_;
  Instruction* instruction_ = nullptr;
  std::vector<Ref> refs_;  // of the statement at hand
  std::map<std::string, Ref> registers_;
  std::map<std::string, uint64_t> symbols_;
  std::map<std::pair<uint64_t, uint8_t>, Ref> constants_;
};

// Calls f.template operator()<T>() for the integer type of that width and sign.
template <class F>
bool with_integer(Type type, F&& f) {
  if (type.is_float() || type.kind == Kind::kPred) return false;
  switch (type.bytes * 2 + (type.is_signed() ? 1 : 0)) {
    case 2: return f.template operator()<uint8_t>(), true;
    case 3: return f.template operator()<int8_t>(), true;
    case 4: return f.template operator()<uint16_t>(), true;
    case 5: return f.template operator()<int16_t>(), true;
    case 8: return f.template operator()<uint32_t>(), true;
    case 9: return f.template operator()<int32_t>(), true;
    case 16: return f.template operator()<uint64_t>(), true;
    case 17: return f.template operator()<int64_t>(), true;
    default: return false;
  }
}

}  // namespace ptxrun
