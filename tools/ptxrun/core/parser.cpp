// Tokens into modules. Names declared inside { } of inline assembly are local to it and repeat, so
// they are renamed when the block closes.

#include <cstdlib>

#include "core/lexer.h"
#include "core/ptx.h"

namespace ptxrun {

Type type_named(std::string_view name) {
  static const std::map<std::string_view, Type> kTypes{
      {"pred", {Kind::kPred, 4}},     {"b8", {Kind::kBits, 1}},      {"b16", {Kind::kBits, 2}},
      {"b32", {Kind::kBits, 4}},      {"b64", {Kind::kBits, 8}},     {"b128", {Kind::kBits, 16}},
      {"u8", {Kind::kUnsigned, 1}},   {"u16", {Kind::kUnsigned, 2}}, {"u32", {Kind::kUnsigned, 4}},
      {"u64", {Kind::kUnsigned, 8}},  {"s8", {Kind::kSigned, 1}},    {"s16", {Kind::kSigned, 2}},
      {"s32", {Kind::kSigned, 4}},    {"s64", {Kind::kSigned, 8}},   {"f16", {Kind::kFloat, 2}},
      {"f32", {Kind::kFloat, 4}},     {"f64", {Kind::kFloat, 8}},    {"bf16", {Kind::kBFloat, 2}},
      {"tf32", {Kind::kTF32, 4}},     {"f16x2", {Kind::kPacked, 4}}, {"bf16x2", {Kind::kPacked, 4}},
      {"e4m3", {Kind::kPacked, 1}},   {"e5m2", {Kind::kPacked, 1}},  {"e4m3x2", {Kind::kPacked, 2}},
      {"e5m2x2", {Kind::kPacked, 2}},
  };
  if (name.starts_with('.')) name.remove_prefix(1);
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? Type{} : found->second;
}

namespace {

using Form = Operand::Form;

// Names of one { } block, to be renamed when it closes.
struct Block {
  size_t first_statement;
  std::map<std::string, std::string> local_names;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokens_of(text)) {}

  ModuleText module() {
    while (peek().form != Token::Form::kEnd) module_item();
    return std::move(module_);
  }

 private:
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take(std::string_view wanted) {
    if (!peek().is(wanted)) return false;
    next();
    return true;
  }
  void expect(std::string_view wanted) {
    if (!take(wanted)) fail("expected '" + std::string(wanted) + "'");
  }
  std::string word() { return std::string(next().text); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("PTX line " + std::to_string(peek().line) + ": " + what + ", got '" +
                std::string(peek().text) + "'");
  }
  void skip_statement() {
    while (!take(";")) next();
  }
  void skip_line() {
    for (const uint32_t line = peek().line; peek().line == line && !peek().is("end of text");) {
      next();
    }
  }

  uint64_t integer() {
    const bool is_negative = take("-");
    if (peek().form != Token::Form::kNumber) fail("expected a number");
    std::string text = word();
    if (text.ends_with('U')) text.pop_back();
    const uint64_t value = std::strtoull(text.c_str(), nullptr, 0);
    return is_negative ? 0 - value : value;
  }

  void module_item() {
    const Token& token = peek();
    if (token.is(".version") || token.is(".address_size")) return skip_line();
    if (token.is(".target")) {
      next();
      module_.target = word();
      while (take(",")) next();
      return;
    }
    if (token.is(".file")) return file();
    if (token.is(".section")) {
      while (!take("}")) next();
      return;
    }
    if (token.is(".pragma") || token.is(".alias")) return skip_statement();
    bool is_extern = false;
    while (take(".visible") || take(".weak") || take(".common") || peek().is(".extern")) {
      is_extern |= take(".extern");
    }
    if (peek().is(".entry") || peek().is(".func")) return function();
    if (peek().is(".global") || peek().is(".const") || peek().is(".shared")) {
      Variable v = variable();
      v.is_extern = is_extern;
      module_.variables[v.name] = std::move(v);
      return expect(";");
    }
    fail("unknown directive");
  }

  void file() {
    next();
    const auto index = static_cast<uint32_t>(integer());
    module_.files[index] = word();
    while (take(",")) integer();  // time stamp, size
  }

  Space space(std::string_view name) const {
    if (name == ".shared") return Space::kShared;
    if (name == ".local" || name == ".param") return Space::kLocal;
    return name == ".const" ? Space::kConst : Space::kGlobal;
  }

  // .space [.align n] .type name [dims] [= init]
  Variable variable() {
    Variable v;
    v.space = space(word());
    Type type;
    while (peek().text.starts_with('.')) {
      const std::string attribute = word();
      if (attribute == ".align") {
        v.align = static_cast<uint32_t>(integer());
      } else if (attribute == ".attribute") {
        while (!take(")")) next();
      } else if (const Type t = type_named(attribute); t.bytes != 0) {
        type = t;
      } else if (attribute == ".v2" || attribute == ".v4") {
        fail("vector variables are not supported");
      }
    }
    v.align = std::max<uint32_t>(v.align, type.bytes);
    v.name = word();
    v.bytes = type.bytes;
    bool has_extent = true;
    while (take("[")) {
      has_extent = !peek().is("]");
      v.bytes *= has_extent ? integer() : 0;
      expect("]");
    }
    if (take("=")) {
      initialiser(v, type);
      v.bytes = std::max<uint64_t>(v.bytes, v.init.size());
      v.init.resize(v.bytes);
    }
    return v;
  }

  void initialiser(Variable& v, Type type) {
    if (take("{")) {
      do initialiser(v, type);
      while (take(","));
      return expect("}");
    }
    uint64_t bits = 0;
    if (peek().form == Token::Form::kWord) {
      Relocation reloc{v.init.size(), word(), 0};
      if (reloc.symbol == "generic") {
        expect("(");
        reloc.symbol = word();
        expect(")");
      }
      if (take("+")) reloc.addend = static_cast<int64_t>(integer());
      v.relocations.push_back(reloc);
    } else {
      bits = number().bits;
    }
    for (int i = 0; i < type.bytes; ++i) v.init.push_back(static_cast<uint8_t>(bits >> (8 * i)));
  }

  Operand number() {
    const std::string_view text = peek().text;
    const bool is_hex_float = text.size() > 2 && text[0] == '0';
    if (is_hex_float && (text[1] == 'f' || text[1] == 'F') && text.size() == 10) {
      return {Form::kFloat32, false, "", std::strtoull(word().c_str() + 2, nullptr, 16), {}, ""};
    }
    if (is_hex_float && (text[1] == 'd' || text[1] == 'D') && text.size() == 18) {
      return {Form::kFloat64, false, "", std::strtoull(word().c_str() + 2, nullptr, 16), {}, ""};
    }
    return {Form::kInteger, false, "", integer(), {}, ""};
  }

  std::vector<Operand> list_until(std::string_view close) {
    std::vector<Operand> items;
    while (!take(close)) {
      items.push_back(operand());
      take(",");
    }
    return items;
  }

  Operand operand() {
    Operand o;
    if (take("{")) {
      o.form = Form::kVector;
      o.items = list_until("}");
    } else if (take("(")) {
      o.form = Form::kList;
      o.items = list_until(")");
    } else if (take("[")) {
      o = address();
    } else if (peek().form == Token::Form::kNumber ||
               (peek().is("-") && peek(1).form == Token::Form::kNumber)) {
      o = number();
    } else {
      o.is_negated = take("!") || take("-");
      o.name = word();
      if (take("|")) o.second = word();
    }
    return o;
  }

  Operand address() {
    Operand o;
    o.form = Form::kAddress;
    if (peek().form == Token::Form::kWord) o.name = word();
    if (o.name.empty()) {
      o.bits = integer();
    } else if (take("+")) {
      o.bits = integer();
    } else if (peek().is("-")) {
      o.bits = integer();
    }
    if (take(",")) {
      expect("{");
      o.items = list_until("}");
      take(",");
      if (!peek().is("]")) fail("im2col copies are not supported");
    }
    expect("]");
    return o;
  }

  void function() {
    Function f;
    f.is_entry = word() == ".entry";
    if (take("(")) {  // the returned value of a .func
      while (!take(")")) next();
    }
    f.name = word();
    if (take("(")) {
      while (!take(")")) {
        f.params.push_back(variable());
        take(",");
      }
    }
    while (!peek().is("{") && !peek().is(";")) attribute(f);
    if (!take(";")) {
      expect("{");
      body(f);
    }
    module_.functions[f.name] = std::move(f);
  }

  void attribute(Function& f) {
    const std::string name = word();
    std::vector<uint64_t> values;
    while (peek().form == Token::Form::kNumber) {
      values.push_back(integer());
      take(",");
    }
    values.resize(3, 1);
    if (name == ".maxntid" || name == ".reqntid") {
      f.max_threads = static_cast<uint32_t>(values[0] * values[1] * values[2]);
    } else if (name == ".reqnctapercluster") {
      for (int i = 0; i < 3; ++i) f.cluster[i] = static_cast<uint32_t>(values[i]);
    }
  }

  void body(Function& f) {
    std::vector<Block> blocks{{0, {}}};
    while (!blocks.empty()) {
      if (take("{")) {
        blocks.push_back({f.statements.size(), {}});
      } else if (take("}")) {
        close(f, blocks.back());
        blocks.pop_back();
      } else if (peek().is(".loc")) {
        next();
        source_.file = static_cast<uint32_t>(integer());
        source_.line = static_cast<uint32_t>(integer());
        skip_line();
      } else if (peek().is(".pragma")) {
        skip_statement();
      } else if (peek().is(".reg")) {
        registers(f, blocks);
      } else if (peek().is(".shared") || peek().is(".local") || peek().is(".param")) {
        Variable v = variable();
        v.name = declared(v.name, blocks);
        f.variables[v.name] = std::move(v);
        expect(";");
      } else if (peek(1).is(":")) {
        label(f, blocks);
      } else {
        f.statements.push_back(statement());
      }
    }
  }

  // The name under which the function knows what the innermost block declares.
  std::string declared(const std::string& name, std::vector<Block>& blocks) {
    if (blocks.size() == 1) return name;
    return blocks.back().local_names[name] = name + "@" + std::to_string(++num_locals_);
  }

  void registers(Function& f, std::vector<Block>& blocks) {
    next();
    const Type type = type_named(word());
    do {
      const std::string name = word();
      if (take("<")) {
        const uint64_t count = integer();
        expect(">");
        for (uint64_t i = 0; i < count; ++i) {
          f.registers[declared(name + std::to_string(i), blocks)] = type;
        }
      } else {
        f.registers[declared(name, blocks)] = type;
      }
    } while (take(","));
    expect(";");
  }

  void label(Function& f, std::vector<Block>& blocks) {
    const std::string name = declared(word(), blocks);
    expect(":");
    if (take(".branchtargets")) {
      do f.branch_targets[name].push_back(word());
      while (take(","));
      return expect(";");
    }
    f.labels[name] = static_cast<uint32_t>(f.statements.size());
  }

  Statement statement() {
    Statement s;
    s.ptx_line = peek().line;
    s.source = source_;
    if (take("@")) {
      s.is_negated = take("!");
      s.predicate = word();
    }
    if (peek().form != Token::Form::kWord) fail("expected an instruction");
    s.opcode = word();
    while (!take(";")) {
      s.operands.push_back(operand());
      if (!peek().is(";")) expect(",");
    }
    return s;
  }

  static void rename(Operand& o, const std::map<std::string, std::string>& names) {
    if (const auto found = names.find(o.name); found != names.end()) o.name = found->second;
    if (const auto found = names.find(o.second); found != names.end()) o.second = found->second;
    for (Operand& item : o.items) rename(item, names);
  }

  static void close(Function& f, const Block& block) {
    if (block.local_names.empty()) return;
    for (size_t i = block.first_statement; i < f.statements.size(); ++i) {
      Statement& s = f.statements[i];
      const auto found = block.local_names.find(s.predicate);
      if (found != block.local_names.end()) s.predicate = found->second;
      for (Operand& o : s.operands) rename(o, block.local_names);
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  ModuleText module_;
  SourceLine source_;
  uint32_t num_locals_ = 0;
};

}  // namespace

ModuleText parse(std::string_view text) { return Parser(text).module(); }

}  // namespace ptxrun
