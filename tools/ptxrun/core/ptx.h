// PTX as written: what the parser makes of the text. Nothing is resolved yet.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptxrun {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

enum class Kind : uint8_t { kPred, kBits, kUnsigned, kSigned, kFloat, kBFloat, kTF32, kPacked };

// An element type: .u32, .f16x2, .pred, ...
struct Type {
  Kind kind = Kind::kBits;
  uint8_t bytes = 0;

  bool is_float() const { return kind >= Kind::kFloat; }
  bool is_signed() const { return kind == Kind::kSigned; }
};

// ".u32" or "u32"; bytes == 0: not a type.
Type type_named(std::string_view name);

struct Operand {
  enum class Form : uint8_t {
    kName,     // register, variable or label
    kInteger,  // bits
    kFloat32,  // bits
    kFloat64,  // bits
    kVector,   // {items}
    kAddress,  // [name + bits], [bits], or [name, {items}] of a tensor copy
    kList,     // (items) of a call
  };
  Form form = Form::kName;
  bool is_negated = false;  // -name or !name
  std::string name;
  uint64_t bits = 0;
  std::vector<Operand> items;
  std::string second;  // the q of p|q
};

struct SourceLine {
  uint32_t file = 0;
  uint32_t line = 0;
};

struct Statement {
  std::string predicate;  // empty: none
  bool is_negated = false;
  std::string opcode;
  std::vector<Operand> operands;
  uint32_t ptx_line = 0;
  SourceLine source;
};

struct Relocation {
  uint64_t offset;  // within the variable
  std::string symbol;
  int64_t addend;
};

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  uint32_t align = 1;
  uint64_t bytes = 0;
  bool is_extern = false;
  std::vector<uint8_t> init;
  std::vector<Relocation> relocations;
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Variable> params;
  std::map<std::string, Type> registers;
  std::map<std::string, Variable> variables;  // shared, local, and parameters of calls
  std::map<std::string, uint32_t> labels;     // to an index in `statements`
  std::map<std::string, std::vector<std::string>> branch_targets;
  std::vector<Statement> statements;
  std::array<uint32_t, 3> cluster{0, 0, 0};  // .reqnctapercluster
  uint32_t max_threads = 1024;               // .maxntid, .reqntid
};

struct ModuleText {
  std::string target;
  std::map<uint32_t, std::string> files;
  std::map<std::string, Variable> variables;
  std::map<std::string, Function> functions;
};

ModuleText parse(std::string_view text);

}  // namespace ptxrun
