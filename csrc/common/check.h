// Argument checks: the twin of python/dflash_ops/_check.py, word for word.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>

#include "common/tensor.h"
#include "common/views.h"

namespace dflash {

inline std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool: return "bool";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case ScalarType::Float8_e5m2: return "float8_e5m2";
    default: return torch::headeronly::toString(dtype);
  }
}

inline DType dtype_code(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return DType::kBF16;
    case ScalarType::Half: return DType::kF16;
    case ScalarType::Float8_e4m3fn: return DType::kF8E4M3;
    case ScalarType::Float8_e5m2: return DType::kF8E5M2;
    case ScalarType::Char: return DType::kI8;
    default: return DType::kF32;  // Checks::tensor has let no other through
  }
}

inline constexpr std::initializer_list<ScalarType> kFloats{ScalarType::BFloat16, ScalarType::Half,
                                                           ScalarType::Float};

inline std::string device_name(const Tensor& t) {
  if (t.is_cpu()) return "cpu";
  return (t.is_cuda() ? "cuda:" : "device:") + std::to_string(t.get_device_index());
}

// In a wanted shape -1 stands for any extent; it is printed as *.
inline std::string shape_name(IntHeaderOnlyArrayRef shape) {
  std::string text = "[";
  for (const int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += extent == -1 ? "*" : std::to_string(extent);
  }
  return text + "]";
}

// What one op call says about its arguments: "<op>: <argument> must <...>, got <...>".
struct Checks {
  const char* op;
  const Tensor& like;  // names the device on which every tensor must be

  // Not STD_TORCH_CHECK, which puts a source line in front: users see one text from C++ and Python.
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    std::ostringstream text;
    (text << op << ": " << ... << parts);
    throw std::runtime_error(text.str());
  }

  // `dims` spells the shape in the op's own words, e.g. "[B + 1]".
  void tensor(const char* name, const Tensor& t, std::initializer_list<ScalarType> dtypes,
              const char* dims, IntHeaderOnlyArrayRef shape) const {
    if (std::ranges::find(dtypes, t.scalar_type()) == dtypes.end()) {
      std::string wanted;
      for (const ScalarType dtype : dtypes) {
        wanted += (wanted.empty() ? "" : " or ") + dtype_name(dtype);
      }
      fail(name, " must be ", wanted, ", got ", dtype_name(t.scalar_type()));
    }
    any_tensor(name, t, dims, shape);
  }

  // The same for a tensor of any dtype, whose bytes alone matter.
  void any_tensor(const char* name, const Tensor& t, const char* dims,
                  IntHeaderOnlyArrayRef shape) const {
    const auto fits = [](int64_t got, int64_t want) { return want == -1 || got == want; };
    if (!std::ranges::equal(t.sizes(), shape, fits)) {
      fail(name, " must have shape ", dims, " = ", shape_name(shape), ", got ",
           shape_name(t.sizes()));
    }
    if (t.device() != like.device()) {
      fail(name, " must be on ", device_name(like), ", got ", device_name(t));
    }
  }

  template <class T>
  void at_least(const char* name, T value, T low) const {
    if (!(value >= low)) fail(name, " must be at least ", low, ", got ", value);
  }

  template <class T>
  void at_most(const char* name, T value, T high) const {
    if (!(value <= high)) fail(name, " must be at most ", high, ", got ", value);
  }

  // An option that another one needs.
  void given(const char* name, bool is_given, const char* with, bool with_is_given) const {
    if (with_is_given && !is_given) fail(name, " must be given with ", with, ", got None");
  }

  void one_of(const char* name, const std::string& value,
              std::initializer_list<const char*> options) const {
    if (std::ranges::find(options, value) != options.end()) return;
    std::string wanted;
    for (const char* option : options) wanted += std::string(wanted.empty() ? "" : ", ") + option;
    fail(name, " must be one of ", wanted, ", got ", value);
  }

  void last_contiguous(const char* name, const Tensor& t) const {
    const int64_t last = t.dim() - 1;
    if (t.sizes()[last] > 1 && t.strides()[last] != 1) {
      fail(name, " must have a contiguous last dimension, got strides ", shape_name(t.strides()));
    }
  }

  // Each of these checks an argument and views it in place.
  IndexView index(const char* name, const Tensor& t, const char* dims, int64_t size) const {
    tensor(name, t, {ScalarType::Int, ScalarType::Long}, dims, {size});
    return {t.const_data_ptr(), t.strides()[0], t.scalar_type() == ScalarType::Long};
  }

  IndexView index(const char* name, const OptionalTensor& t, const char* dims, int64_t size) const {
    return t ? index(name, *t, dims, size) : IndexView{};
  }

  IndexTable index_table(const char* name, const Tensor& t, const char* dims,
                         std::initializer_list<int64_t> shape) const {
    tensor(name, t, {ScalarType::Int, ScalarType::Long}, dims, shape);
    return {t.const_data_ptr(), t.strides()[0], t.strides()[1],
            t.size(0),          t.size(1),      t.scalar_type() == ScalarType::Long};
  }

  template <int kDims>
  ArrayView<kDims> array(const char* name, const Tensor& t,
                         std::initializer_list<ScalarType> dtypes, const char* dims,
                         std::initializer_list<int64_t> shape) const {
    tensor(name, t, dtypes, dims, shape);
    ArrayView<kDims> view{t.const_data_ptr(), dtype_code(t.scalar_type()), {}};
    std::ranges::copy(t.strides(), view.strides);
    return view;
  }

  template <int kDims>
  ArrayView<kDims> array(const char* name, const OptionalTensor& t,
                         std::initializer_list<ScalarType> dtypes, const char* dims,
                         std::initializer_list<int64_t> shape) const {
    return t ? array<kDims>(name, *t, dtypes, dims, shape) : ArrayView<kDims>{};
  }

  template <int kDims>
  ArrayOut<kDims> array_out(const char* name, const Tensor& t,
                            std::initializer_list<ScalarType> dtypes, const char* dims,
                            std::initializer_list<int64_t> shape) const {
    tensor(name, t, dtypes, dims, shape);
    ArrayOut<kDims> view{t.mutable_data_ptr(), dtype_code(t.scalar_type()), {}};
    std::ranges::copy(t.strides(), view.strides);
    return view;
  }

  IndexOut index_out(const char* name, const Tensor& t, const char* dims,
                     std::initializer_list<int64_t> shape) const {
    tensor(name, t, {ScalarType::Int, ScalarType::Long}, dims, shape);
    const int64_t col_stride = shape.size() == 2 ? t.strides()[1] : 0;
    return {t.mutable_data_ptr(), t.strides()[0], col_stride, t.scalar_type() == ScalarType::Long};
  }

  StatusView status(const OptionalTensor& t, const char* dims, int64_t size) const {
    if (!t) return {};
    tensor("status", *t, {ScalarType::Int}, dims, {size});
    return {t->mutable_data_ptr<int32_t>(), t->strides()[0]};
  }
};

}  // namespace dflash
