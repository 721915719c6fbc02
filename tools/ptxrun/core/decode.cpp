#include "core/decode.h"

#include <algorithm>
#include <cstring>

namespace ptxrun {
namespace {

const InstructionTable& table() {
  static const InstructionTable instance = [] {
    InstructionTable t;
    for (const auto add :
         {add_integer, add_extended, add_compare, add_float, add_packed, add_convert, add_control,
          add_memory, add_exchange, add_matrix, add_copy, add_mbarrier, add_cluster, add_wgmma}) {
      add(t);
    }
    return t;
  }();
  return instance;
}

// Offset of each special register by name.
const std::map<std::string_view, SpecialRegisters::Index>& special_registers() {
  using S = SpecialRegisters;
  static const std::map<std::string_view, S::Index> kNames{
      {"%tid.x", S::kTidX},
      {"%tid.y", S::kTidY},
      {"%tid.z", S::kTidZ},
      {"%ntid.x", S::kNtidX},
      {"%ntid.y", S::kNtidY},
      {"%ntid.z", S::kNtidZ},
      {"%ctaid.x", S::kCtaX},
      {"%ctaid.y", S::kCtaY},
      {"%ctaid.z", S::kCtaZ},
      {"%nctaid.x", S::kNctaX},
      {"%nctaid.y", S::kNctaY},
      {"%nctaid.z", S::kNctaZ},
      {"%laneid", S::kLane},
      {"%warpid", S::kWarp},
      {"%nwarpid", S::kNwarp},
      {"%lanemask_eq", S::kLaneEq},
      {"%lanemask_lt", S::kLaneLt},
      {"%lanemask_le", S::kLaneLe},
      {"%lanemask_gt", S::kLaneGt},
      {"%lanemask_ge", S::kLaneGe},
      {"%smid", S::kSm},
      {"%nsmid", S::kNsm},
      {"%clock", S::kClock},
      {"%clock64", S::kClock64},
      {"%globaltimer", S::kTimer},
      {"%dynamic_smem_size", S::kDynamicShared},
      {"%total_smem_size", S::kTotalShared},
      {"%cluster_ctarank", S::kClusterRank},
      {"%cluster_nctarank", S::kClusterSize},
      {"%cluster_ctaid.x", S::kClusterCtaX},
      {"%cluster_ctaid.y", S::kClusterCtaY},
      {"%cluster_ctaid.z", S::kClusterCtaZ},
      {"%cluster_nctaid.x", S::kClusterNctaX},
      {"%cluster_nctaid.y", S::kClusterNctaY},
      {"%cluster_nctaid.z", S::kClusterNctaZ},
      {"%clusterid.x", S::kClusterX},
      {"%clusterid.y", S::kClusterY},
      {"%clusterid.z", S::kClusterZ},
      {"%nclusterid.x", S::kNclusterX},
      {"%nclusterid.y", S::kNclusterY},
      {"%nclusterid.z", S::kNclusterZ},
      {"%gridid", S::kGrid},
  };
  return kNames;
}

uint8_t special_bytes(std::string_view name) {
  return name == "%clock64" || name == "%globaltimer" || name == "%gridid" ? 8 : 4;
}

uint32_t align_up(uint64_t value, uint64_t align) {
  return static_cast<uint32_t>((value + align - 1) / align * align);
}

}  // namespace

std::vector<std::string> split(const std::string& opcode) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t dot; (dot = opcode.find('.', begin)) != std::string::npos; begin = dot + 1) {
    parts.push_back(opcode.substr(begin, dot - begin));
  }
  parts.push_back(opcode.substr(begin));
  return parts;
}

std::vector<std::string> instruction_names() {
  std::vector<std::string> names;
  for (const auto& [name, decode] : table()) names.push_back(name);
  return names;
}

std::unique_ptr<Kernel> decode(const Module& module, const Function& function) {
  auto kernel = std::make_unique<Kernel>();
  kernel->name = function.name;
  kernel->text = &function;
  kernel->is_divisible = is_divisible(function);
  Decoder(module, function, *kernel).run();
  return kernel;
}

Decoder::Decoder(const Module& module, const Function& function, Kernel& kernel)
    : module_(module), function_(function), kernel_(kernel) {
  layout_parameters();
  layout_variables();
  layout_registers();
}

void Decoder::layout_parameters() {
  for (const Variable& p : function_.params) {
    kernel_.parameter_bytes = align_up(kernel_.parameter_bytes, p.align);
    kernel_.parameters.push_back({kernel_.parameter_bytes, static_cast<uint32_t>(p.bytes)});
    symbols_[p.name] = kParamWindow + kernel_.parameter_bytes;
    kernel_.parameter_bytes += static_cast<uint32_t>(p.bytes);
  }
}

// Shared memory: the function's own variables, then the module's that it names, then the dynamic.
void Decoder::layout_variables() {
  const auto place = [&](const Variable& v) {
    uint32_t& end = v.space == Space::kShared ? kernel_.shared_bytes : kernel_.local_bytes;
    end = align_up(end, v.align);
    symbols_[v.name] = end;
    end += static_cast<uint32_t>(v.bytes);
  };
  for (const auto& [name, v] : function_.variables) place(v);
  std::vector<const Variable*> dynamic;
  const std::function<void(const Operand&)> visit = [&](const Operand& o) {
    const auto found = module_.text().variables.find(o.name);
    if (found != module_.text().variables.end() && found->second.space == Space::kShared &&
        !symbols_.contains(o.name)) {
      symbols_[o.name] = 0;
      if (found->second.is_extern) {
        dynamic.push_back(&found->second);
      } else {
        place(found->second);
      }
    }
    for (const Operand& item : o.items) visit(item);
  };
  for (const Statement& s : function_.statements) std::ranges::for_each(s.operands, visit);
  for (const Variable* v : dynamic) {
    kernel_.shared_bytes = align_up(kernel_.shared_bytes, std::max(v->align, 16u));
  }
  for (const Variable* v : dynamic) symbols_[v->name] = kernel_.shared_bytes;
}

void Decoder::layout_registers() {
  // What a register holds before it is written: a value that shows in results.
  uint32_t end = SpecialRegisters::kBytes;
  for (const auto& [name, type] : function_.registers) {
    if (type.bytes > 8) throw Error(function_.name + ": 128-bit registers are not supported");
    const bool is_predicate = type.kind == Kind::kPred;
    const auto bytes = static_cast<uint8_t>(is_predicate ? 0 : std::max<int>(type.bytes, 2));
    registers_[name] = {end, bytes, false};
    end += is_predicate ? 64 : 32 * bytes;
  }
  kernel_.registers.assign(end, 0xcd);
}

Ref Decoder::constant(uint64_t bits, uint8_t bytes) {
  if (bytes < 8 && bytes > 0) bits &= (1ull << (8 * bytes)) - 1;
  const auto [found, is_new] = constants_.try_emplace({bits, bytes});
  if (is_new) {
    found->second = {static_cast<uint32_t>(kernel_.registers.size()), bytes, false};
    const size_t begin = kernel_.registers.size();
    const size_t lane_bytes = bytes == 0 ? 4 : bytes;
    kernel_.registers.resize(begin + std::max<size_t>(32 * lane_bytes, 64));
    for (int lane = 0; lane < (bytes == 0 ? 1 : 32); ++lane) {
      std::memcpy(kernel_.registers.data() + begin + lane * lane_bytes, &bits, lane_bytes);
    }
  }
  return found->second;
}

void Decoder::run() {
  kernel_.code.resize(function_.statements.size() + 1);
  std::vector<size_t> counts;
  for (uint32_t i = 0; i <= function_.statements.size(); ++i) {
    static const Statement kEnd{"", false, "exit", {}, 0, {}};
    statement_ = i < function_.statements.size() ? &function_.statements[i] : &kEnd;
    instruction_ = &kernel_.code[i];
    instruction_->index = i;
    parts_ = split(statement_->opcode);
    if (!statement_->predicate.empty()) {
      instruction_->has_predicate = true;
      instruction_->is_negated = statement_->is_negated;
      const auto found = registers_.find(statement_->predicate);
      if (found == registers_.end()) fail("unknown predicate " + statement_->predicate);
      instruction_->predicate = found->second.offset;
    }
    const DecodeFn* decode = entry();
    if (decode == nullptr) fail("unknown instruction");
    (*decode)(*this);
    if (instruction_->run == nullptr) fail("unsupported form");
    kernel_.refs.insert(kernel_.refs.end(), refs_.begin(), refs_.end());
    counts.push_back(refs_.size());
    refs_.clear();
  }
  const Ref* next = kernel_.refs.data();  // where they stay
  for (size_t i = 0; i < counts.size(); next += counts[i++]) {
    kernel_.code[i].refs = {next, counts[i]};
  }
}

// "add" stands for integers, "add.float" for f32 and f64, "add.half" for f16, bf16 and pairs of
// them.
const DecodeFn* Decoder::entry() const {
  const Type type = type_named(parts_.back());
  if (parts_.size() > 1 && parts_[1] == "cc") {
    const auto found = table().find(parts_[0] + ".cc");
    if (found != table().end()) return &found->second;
  }
  if (type.is_float()) {
    const bool is_wide = type.kind == Kind::kFloat && type.bytes >= 4;
    const auto found = table().find(parts_[0] + (is_wide ? ".float" : ".half"));
    if (found != table().end()) return &found->second;
  }
  const auto found = table().find(parts_[0]);
  return found == table().end() ? nullptr : &found->second;
}

bool Decoder::has(std::string_view part) const {
  return std::ranges::find(parts_, part) != parts_.end();
}

Type Decoder::type(size_t from_end) const {
  if (from_end >= parts_.size()) fail("a type is missing");
  const Type found = type_named(parts_[parts_.size() - 1 - from_end]);
  if (found.bytes == 0) fail("unknown type " + parts_[parts_.size() - 1 - from_end]);
  return found;
}

const Operand& Decoder::operand(size_t i) const {
  if (i >= count()) fail("operand " + std::to_string(i) + " is missing");
  return statement_->operands[i];
}

void Decoder::fail(const std::string& what) const {
  throw Error(readable(function_.name) + ": PTX line " + std::to_string(statement_->ptx_line) +
              ": " + what + ": " + statement_->opcode + " (source line " +
              std::to_string(statement_->source.line) + ")");
}

Type Decoder::register_type(const std::string& name) const {
  const auto found = function_.registers.find(name);
  return found == function_.registers.end() ? Type{} : found->second;
}

void Decoder::destination(size_t i, Type type) {
  if (operand(i).form != Operand::Form::kName) fail("a destination must be a register");
  writes();
  ref(operand(i), type, false);
}

void Decoder::source(size_t i, Type type) { ref(operand(i), type, false); }

void Decoder::any(const Operand& operand, Type type) { ref(operand, type, true); }

void Decoder::ref(const Operand& o, Type type, bool is_any_width) {
  if (type.kind == Kind::kPred) return predicate_in(o);
  const auto bytes = static_cast<uint8_t>(std::max<int>(type.bytes, 2));
  switch (o.form) {
    case Operand::Form::kInteger: return refs_.push_back(constant(o.bits, bytes));
    case Operand::Form::kFloat32:
      if (bytes != 4) fail("a 32-bit literal in another place");
      return refs_.push_back(constant(o.bits, bytes));
    case Operand::Form::kFloat64:
      if (bytes == 8) return refs_.push_back(constant(o.bits, bytes));
      if (bytes == 4) {
        return refs_.push_back(constant(
            std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(o.bits))), bytes));
      }
      fail("a 64-bit literal in another place");
    case Operand::Form::kName: break;
    default: fail("expected a register or a literal");
  }
  if (o.is_negated) fail("negated operands are not supported");
  if (o.name == "_") return refs_.push_back({0, 0, false});
  if (const auto found = registers_.find(o.name); found != registers_.end()) {
    if (!is_any_width && found->second.bytes != bytes) fail("width of " + o.name);
    return refs_.push_back(found->second);
  }
  if (o.name == "WARP_SZ") return refs_.push_back(constant(32, bytes));
  if (const auto found = special_registers().find(o.name); found != special_registers().end()) {
    const uint8_t own = special_bytes(o.name);
    if (!is_any_width && own != bytes) fail("width of " + o.name);
    return refs_.push_back({SpecialRegisters::offset(found->second), own, false});
  }
  uint64_t value = 0;
  if (!symbol(o.name, value)) fail("unknown name " + o.name);
  refs_.push_back(constant(value, bytes));
}

bool Decoder::symbol(const std::string& name, uint64_t& value) const {
  if (const auto found = symbols_.find(name); found != symbols_.end()) {
    value = found->second;
    return true;
  }
  if (const Allocation* variable = module_.variable(name)) {
    value = variable->base;
    return true;
  }
  return false;
}

void Decoder::predicate_out(const std::string& name) {
  if (name == "_" || name.empty()) return unused();
  const auto found = registers_.find(name);
  if (found == registers_.end() || found->second.bytes != 0) fail(name + " is not a predicate");
  refs_.push_back(found->second);
}

void Decoder::predicate_in(const Operand& o) {
  if (o.form == Operand::Form::kInteger) {
    Ref all = constant(o.bits != 0 ? ~0ull : 0, 0);
    return refs_.push_back(all);
  }
  predicate_out(o.name);
  refs_.back().is_inverted = o.is_negated;
}

void Decoder::address(const Operand& o) {
  if (o.form != Operand::Form::kAddress) fail("expected an address");
  instruction_->value = static_cast<int64_t>(o.bits);
  if (o.name.empty()) {
    refs_.push_back(constant(0, 8));
  } else {
    Operand base;
    base.name = o.name;
    ref(base, {Kind::kBits, 8}, true);
  }
}

void Decoder::touches(Space space, uint32_t bytes) {
  instruction_->space = space;
  if (space != Space::kShared && space != Space::kGeneric) return;
  kernel_.shared_grain = std::min(kernel_.shared_grain, std::bit_floor(bytes));
}

bool Decoder::is_local(const std::string& name) const {
  const auto found = function_.variables.find(name);
  return found != function_.variables.end() && found->second.space == Space::kLocal;
}

int64_t Decoder::integer(size_t i) const {
  if (operand(i).form != Operand::Form::kInteger) fail("expected a literal");
  return static_cast<int64_t>(operand(i).bits);
}

uint32_t Decoder::target(const std::string& label) const {
  const auto found = function_.labels.find(label);
  if (found == function_.labels.end()) fail("unknown label " + label);
  return found->second;
}

const std::vector<std::string>& Decoder::branch_targets(const std::string& label) const {
  const auto found = function_.branch_targets.find(label);
  if (found == function_.branch_targets.end()) fail("unknown targets " + label);
  return found->second;
}

Space Decoder::space_of(size_t first_part) const {
  for (size_t i = first_part; i < parts_.size(); ++i) {
    const std::string& part = parts_[i];
    if (part == "global") return Space::kGlobal;
    if (part.starts_with("shared")) return Space::kShared;
    if (part == "local") return Space::kLocal;
    if (part.starts_with("param")) return Space::kParam;
    if (part == "const") return Space::kConst;
  }
  return Space::kGeneric;
}

}  // namespace ptxrun
