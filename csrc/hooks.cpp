// _C.hooks: the shared scalar arithmetic over arrays, for tests. Arrays are given by address.
#include "hooks.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "common/dtype.h"
#include "common/expf.h"
#include "common/logf.h"
#include "common/noise.h"
#include "sample/lse.h"

namespace py = pybind11;
using namespace dflash;

namespace {

// out[i] = f(in[i])
template <class In, class Out, class F>
void add_map(py::module_& m, const char* name, F f) {
  m.def(
      name,
      [f](uintptr_t in, uintptr_t out, int64_t count) {
        const auto* from = reinterpret_cast<const In*>(in);
        auto* to = reinterpret_cast<Out*>(out);
        for (int64_t i = 0; i < count; ++i) to[i] = f(from[i]);
      },
      py::arg("inputs"), py::arg("outputs"), py::arg("count"),
      py::call_guard<py::gil_scoped_release>());
}

template <class T>
void add_conversions(py::module_& m, const std::string& name) {
  add_map<T, float>(m, (name + "_to_float").c_str(), [](T x) { return to_float(x); });
  add_map<float, T>(m, (name + "_from_float").c_str(), [](float x) { return from_float<T>(x); });
}

struct PhiloxInput {
  uint64_t key;
  Words counter;
};

struct GumbelCheck {
  double worst = 0;       // largest |g - g64| / max(1, |g64|)
  double worst_over = 0;  // largest g - gumbel_bound
  uint64_t hash = 0;      // sum over the words, so that their order does not matter
};

uint64_t mix(uint64_t x) {  // a bijection of 64 bits without visible structure
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
  return x ^ x >> 32;
}

// Some 32 low bits for a word.
uint32_t low_word(uint64_t word) { return static_cast<uint32_t>(mix(word)); }

GumbelCheck check_gumbel(uint64_t first, uint64_t last) {
  GumbelCheck result{.worst_over = -1e9};
  for (uint64_t i = first; i < last; ++i) {
    const auto word = static_cast<uint32_t>(i);
    const uint32_t low = low_word(i);
    const float g = gumbel(word, low);
    const double wide = word < kExtendBelow
                            ? (static_cast<double>(uint64_t{word} << 32 | low) + 0.5) * 0x1p-64
                            : (static_cast<double>(word) + 0.5) * 0x1p-32;
    const double g64 =
        -std::log(word < 1u << 31 ? -std::log1p(-wide)
                                  : -std::log((static_cast<double>(~word) + 0.5) * 0x1p-32));
    result.worst = std::max(result.worst, std::abs(g - g64) / std::max(1.0, std::abs(g64)));
    result.worst_over = std::max(result.worst_over, static_cast<double>(g - gumbel_bound(word)));
    result.hash += mix(i << 32 | std::bit_cast<uint32_t>(g));
  }
  return result;
}

GumbelCheck check_gumbel_threaded(uint64_t first, uint64_t last) {
  const uint64_t count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<GumbelCheck> parts(count);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const uint64_t span = last - first;
      parts[i] = check_gumbel(first + span * i / count, first + span * (i + 1) / count);
    });
  }
  for (std::thread& thread : threads) thread.join();
  GumbelCheck all{.worst_over = -1e9};
  for (const GumbelCheck& part : parts) {
    all.worst = std::max(all.worst, part.worst);
    all.worst_over = std::max(all.worst_over, part.worst_over);
    all.hash += part.hash;
  }
  return all;
}

// The log-sum-exp of values that belong to ids first_id, first_id + 1, ..
float lse_of_values(uintptr_t in, int64_t count, int64_t first_id) {
  const auto* z = reinterpret_cast<const float*>(in);
  LseTree tree;
  for (int64_t i = 0; i < count;) {
    const int64_t block = (first_id + i) / kLseBlock;
    const int64_t last = std::min(count, (block + 1) * kLseBlock - first_id);
    LseNode node{*std::max_element(z + i, z + last), 0.0f};
    for (; i < last; ++i) {
      if (z[i] > kMinusInf) node.sum += exp_f32(z[i] - node.max);
    }
    tree.add(block, node);
  }
  return lse_of(tree.total());
}

}  // namespace

void add_hooks(py::module_& m) {
  add_conversions<BF16>(m, "bfloat16");
  add_conversions<F16>(m, "float16");
  add_conversions<F8E4M3>(m, "float8_e4m3fn");
  add_conversions<F8E5M2>(m, "float8_e5m2");
  add_conversions<int8_t>(m, "int8");

  add_map<float, float>(m, "exp_f32", [](float x) { return exp_f32(x); });
  add_map<float, float>(m, "tanh_f32", [](float x) { return tanh_f32(x); });
  add_map<float, float>(m, "log_f32", [](float x) { return log_f32(x); });
  add_map<float, float>(m, "log1m_f32", [](float x) { return log1m_f32(x); });

  add_map<PhiloxInput, Words>(m, "philox", [](PhiloxInput x) { return philox(x.key, x.counter); });
  // A pair of words as one uint64, the first one in the high half.
  add_map<uint64_t, float>(m, "gumbel", [](uint64_t x) {
    return gumbel(static_cast<uint32_t>(x >> 32), static_cast<uint32_t>(x));
  });
  add_map<uint32_t, float>(m, "gumbel_bound", [](uint32_t word) { return gumbel_bound(word); });
  add_map<uint64_t, float>(m, "coin", [](uint64_t x) {
    return coin(static_cast<uint32_t>(x >> 32), static_cast<uint32_t>(x));
  });
  m.def("lse", &lse_of_values, py::arg("values"), py::arg("count"), py::arg("first_id"));
  py::class_<GumbelCheck>(m, "GumbelCheck")
      .def_readonly("worst", &GumbelCheck::worst)
      .def_readonly("worst_over", &GumbelCheck::worst_over)
      .def_readonly("hash", &GumbelCheck::hash);
  m.def("check_gumbel", &check_gumbel_threaded, py::arg("first"), py::arg("last"),
        "Compares gumbel with float64 for each first word in [first, last), and hashes it.",
        py::call_guard<py::gil_scoped_release>());
}
