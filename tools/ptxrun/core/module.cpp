#include <cxxabi.h>

#include <cstdlib>
#include <cstring>

#include "core/program.h"

namespace ptxrun {
namespace {

// Variables get addresses of their own, far from what the host hands over.
uint64_t next_base(uint64_t bytes) {
  static uint64_t next = 1ull << 57;
  const uint64_t base = next;
  next += (bytes + 0xffff) / 0x10000 * 0x10000 + 0x10000;
  return base;
}

}  // namespace

Module::Module(std::string_view ptx, Memory& memory) : text_(parse(ptx)), memory_(memory) {
  for (const auto& [name, variable] : text_.variables) {
    if (variable.space == Space::kShared) continue;
    std::vector<uint8_t>& bytes = bytes_[name];
    bytes = variable.init;
    bytes.resize(variable.bytes);
    Allocation a{next_base(variable.bytes), variable.bytes, bytes.data(), name, {}};
    variables_[name] = a;
    memory_.add(a);
  }
  for (const auto& [name, variable] : text_.variables) relocate(name, variable);
}

Module::~Module() {
  for (const auto& [name, allocation] : variables_) memory_.remove(allocation.base);
}

void Module::relocate(const std::string& name, const Variable& variable) {
  for (const Relocation& r : variable.relocations) {
    const Allocation* target = this->variable(r.symbol);
    if (target == nullptr) throw Error(name + " points at unknown symbol " + r.symbol);
    const uint64_t address = target->base + static_cast<uint64_t>(r.addend);
    std::memcpy(bytes_[name].data() + r.offset, &address, sizeof address);
  }
}

const Allocation* Module::variable(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

const Kernel& Module::kernel(const std::string& name) {
  std::unique_ptr<Kernel>& kernel = kernels_[name];
  if (!kernel) {
    const auto found = text_.functions.find(name);
    if (found == text_.functions.end()) throw Error("the module has no kernel " + name);
    kernel = decode(*this, found->second);
  }
  return *kernel;
}

std::string readable(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  constexpr size_t kMost = 100;  // templates of CUTLASS take pages
  if (result.size() > kMost) result = result.substr(0, kMost) + "...";
  return result;
}

std::string Module::source_of(const Kernel& kernel, uint32_t index) const {
  if (index >= kernel.text->statements.size()) return kernel.name;
  const Statement& s = kernel.text->statements[index];
  const auto file = text_.files.find(s.source.file);
  std::string place = "PTX line " + std::to_string(s.ptx_line);
  if (file != text_.files.end()) {
    const std::string& path = file->second;
    place =
        path.substr(path.rfind('/') + 1) + ":" + std::to_string(s.source.line) + " (" + place + ")";
  }
  return place + " " + s.opcode;
}

}  // namespace ptxrun
