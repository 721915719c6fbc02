// Python's view of the emulated device. Addresses are integers; tensors stay in Python.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "host/device.h"

namespace py = pybind11;
using ptxrun::Device;

namespace {

std::array<uint32_t, 3> three(const std::vector<uint32_t>& extents) {
  std::array<uint32_t, 3> result{1, 1, 1};
  for (size_t i = 0; i < extents.size() && i < 3; ++i) result[i] = extents[i];
  return result;
}

struct PyModule {
  explicit PyModule(const std::string& ptx)
      : module(std::make_shared<ptxrun::Module>(ptx, Device::get().memory())) {}

  std::string launch(const std::string& name, const std::string& parameters,
                     const std::vector<uint32_t>& grid, const std::vector<uint32_t>& block,
                     uint32_t shared, const std::vector<uint32_t>& cluster) {
    const ptxrun::Kernel& kernel = module->kernel(name);
    if (parameters.size() != kernel.parameter_bytes) {
      throw ptxrun::Error(name + " takes " + std::to_string(kernel.parameter_bytes) +
                          " bytes of parameters, got " + std::to_string(parameters.size()));
    }
    return Device::get().launch(module, kernel, {three(grid), three(block), three(cluster), shared},
                                reinterpret_cast<const uint8_t*>(parameters.data()));
  }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, function] : module->text().functions) {
      if (function.is_entry) result.push_back(name);
    }
    return result;
  }

  std::map<std::string, size_t> census(const std::string& name) const {
    std::map<std::string, size_t> counts;
    for (const auto& s : module->text().functions.at(name).statements) ++counts[s.opcode];
    return counts;
  }

  // Offset and size of each parameter: where a caller puts its arguments.
  std::vector<std::pair<uint32_t, uint32_t>> parameters(const std::string& name) {
    std::vector<std::pair<uint32_t, uint32_t>> result;
    for (const auto& p : module->kernel(name).parameters) result.emplace_back(p.offset, p.bytes);
    return result;
  }

  std::shared_ptr<ptxrun::Module> module;
};

py::list counters() {
  py::list rows;
  for (const auto& [name, stats] : Device::get().stats()) {
    for (uint32_t i = 0; i + 1 < stats.counters.size(); ++i) {
      const ptxrun::Counter& c = stats.counters[i];
      if (c.runs == 0) continue;
      const ptxrun::Statement& s = stats.kernel->text->statements[i];
      rows.append(py::make_tuple(name, s.source.line, s.ptx_line, s.opcode, c.runs, c.lanes,
                                 c.bytes, c.sectors, c.ideal_sectors, c.waves, c.ideal_waves));
    }
  }
  return rows;
}

py::dict totals() {
  py::dict result;
  for (const auto& [name, stats] : Device::get().stats()) {
    py::dict footprint;
    for (const auto& [tensor, touched] : stats.footprint) {
      footprint[py::str(tensor)] = py::make_tuple(touched.read, touched.written);
    }
    const auto& block = stats.last.block;
    result[py::str(name)] =
        py::make_tuple(stats.launches, stats.instructions, stats.matrix, stats.ctas,
                       block[0] * block[1] * block[2], stats.kernel->shared_bytes,
                       stats.last.dynamic_shared, stats.in_flight, footprint);
  }
  return result;
}

}  // namespace

PYBIND11_MODULE(_ptxrun, m) {
  py::register_exception<ptxrun::Error>(m, "Error", PyExc_RuntimeError);

  py::enum_<ptxrun::Order>(m, "Order")
      .value("FORWARD", ptxrun::Order::kForward)
      .value("REVERSE", ptxrun::Order::kReverse)
      .value("RANDOM", ptxrun::Order::kRandom);
  py::enum_<ptxrun::Landing>(m, "Landing")
      .value("LATEST", ptxrun::Landing::kLatest)
      .value("EARLIEST", ptxrun::Landing::kEarliest)
      .value("RANDOM", ptxrun::Landing::kRandom);
  py::enum_<ptxrun::MmaMode>(m, "MmaMode")
      .value("CHAINED", ptxrun::MmaMode::kChained)
      .value("BLOCK_TRUNCATED", ptxrun::MmaMode::kBlockTruncated)
      .value("PERMUTED", ptxrun::MmaMode::kPermuted);

  py::class_<ptxrun::Options>(m, "Options")
      .def(py::init<>())
      .def_readwrite("checks", &ptxrun::Options::checks)
      .def_readwrite("uninitialised", &ptxrun::Options::uninitialised)
      .def_readwrite("proxy_fences", &ptxrun::Options::proxy_fences)
      .def_readwrite("counters", &ptxrun::Options::counters)
      .def_readwrite("by_grid", &ptxrun::Options::by_grid)
      .def_readwrite("footprint", &ptxrun::Options::footprint)
      .def_readwrite("sample", &ptxrun::Options::sample)
      .def_readwrite("order", &ptxrun::Options::order)
      .def_readwrite("seed", &ptxrun::Options::seed)
      .def_readwrite("resident", &ptxrun::Options::resident)
      .def_readwrite("max_instructions", &ptxrun::Options::max_instructions)
      .def_readwrite("mma", &ptxrun::Options::mma)
      .def_readwrite("threads", &ptxrun::Options::threads)
      .def_readwrite("landing", &ptxrun::Options::landing)
      .def_readwrite("perturb_approx", &ptxrun::Options::perturb_approx);

  py::class_<PyModule>(m, "Module")
      .def(py::init<const std::string&>())
      .def("launch",
           [](PyModule& self, const std::string& name, const py::bytes& parameters,
              const std::vector<uint32_t>& grid, const std::vector<uint32_t>& block,
              uint32_t shared, const std::vector<uint32_t>& cluster) {
             return self.launch(name, parameters, grid, block, shared, cluster);
           })
      .def_property_readonly("names", &PyModule::names)
      .def("census", &PyModule::census)
      .def("parameters", &PyModule::parameters);

  m.def("instructions", &ptxrun::instruction_names);
  m.def("options", [] { return &Device::get().options; }, py::return_value_policy::reference);
  m.def("set_edit", [](std::function<std::string(const std::string&)> edit) {
    Device::get().set_edit(std::move(edit));
  });
  m.def("images", [] {
    py::list result;
    for (const auto& binary : Device::get().binaries()) {
      for (const auto& image : binary->images) {
        result.append(py::make_tuple(image.arch, image.ptx));
      }
    }
    return result;
  });
  m.def("set_arch", [](int arch) { Device::get().arch = arch; });
  m.def("reserve", [](uint64_t bytes) { return Device::get().reserve(bytes); });
  m.def("map", [](uint64_t base, uint64_t data, uint64_t first, uint64_t bytes,
                  const std::string& name, bool is_constant) {
    Device::get().map(base, reinterpret_cast<void*>(data), first, bytes, name, is_constant);
  });
  m.def("allocate", [](uint64_t bytes, const std::string& name) {
    return Device::get().allocate(bytes, name);
  });
  m.def("release", [](uint64_t base) { Device::get().release(base); });
  m.def("release_temporaries", [] { Device::get().release_temporaries(); });
  m.def("data", [](uint64_t address, uint64_t bytes) {
    return reinterpret_cast<uint64_t>(Device::get().data(address, bytes));
  });
  m.def("unwritten",
        [](uint64_t address, uint64_t bytes) { return Device::get().unwritten(address, bytes); });
  m.def("take_reports", [] {
    py::list result;
    for (const ptxrun::Report& r : Device::get().take_reports()) {
      result.append(py::make_tuple(r.kind, r.text, r.count));
    }
    return result;
  });
  m.def("counters", &counters);
  m.def("totals", &totals);
  m.def("reset_counters", [] { Device::get().stats().clear(); });
}
