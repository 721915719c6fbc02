#pragma once

#include <type_traits>
#include <utility>

#include "common/dtype.h"

namespace dflash {

// Turns a runtime value into a compile-time one: calls f(std::integral_constant<int, V>{}) for the
// V in kValues that equals `value`, and returns false if there is none. The list at the call site
// is the whole set of instantiations.
template <int... kValues, class F>
[[nodiscard]] bool with_constant(int value, F&& f) {
  return ((value == kValues && (f(std::integral_constant<int, kValues>{}), true)) || ...);
}

// Those of a sequence.
template <int... kValues, class F>
[[nodiscard]] bool with_constant(int value, std::integer_sequence<int, kValues...>, F&& f) {
  return with_constant<kValues...>(value, f);
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, BF16>) return DType::kBF16;
  if constexpr (std::is_same_v<T, F16>) return DType::kF16;
  if constexpr (std::is_same_v<T, F8E4M3>) return DType::kF8E4M3;
  if constexpr (std::is_same_v<T, F8E5M2>) return DType::kF8E5M2;
  if constexpr (std::is_same_v<T, int8_t>) return DType::kI8;
}

// The same for element types: calls f(std::type_identity<T>{}) for the T that `dtype` names.
template <class... Ts, class F>
[[nodiscard]] constexpr bool with_dtype(DType dtype, F&& f) {
  return ((dtype == dtype_of<Ts>() && (f(std::type_identity<Ts>{}), true)) || ...);
}

}  // namespace dflash
