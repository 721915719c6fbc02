// Checks that the kv ops share: a cache with its scales.
#pragma once

#include <algorithm>
#include <string>

#include "common/check.h"
#include "kv/params.h"

namespace dflash {

inline constexpr std::initializer_list<ScalarType> kCacheDtypes{
    ScalarType::BFloat16,      ScalarType::Half,        ScalarType::Float,
    ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2, ScalarType::Char};

// `name`_scale belongs to `name`_cache, `name` being k or v.
inline KvScale kv_scale(const Checks& checks, const std::string& name, const OptionalTensor& scale,
                        const Tensor& cache) {
  if (!scale) return {};
  const std::string scale_name = name + "_scale";
  if (std::ranges::find(kFloats, cache.scalar_type()) != kFloats.end()) {
    checks.fail(scale_name, " must be absent with a ", dtype_name(cache.scalar_type()), " ", name,
                "_cache, got a tensor");
  }
  const int64_t num_pages = cache.size(0), page_size = cache.size(1), num_heads = cache.size(2);
  const auto strides = scale->strides();
  KvScale view{};
  if (scale->dim() == 0) {
    checks.tensor(scale_name.c_str(), *scale, {ScalarType::Float}, "[]", {});
  } else if (scale->dim() == 1) {
    checks.tensor(scale_name.c_str(), *scale, {ScalarType::Float}, "[Hkv]", {num_heads});
    view.head_stride = strides[0];
  } else {
    checks.tensor(scale_name.c_str(), *scale, {ScalarType::Float}, "[num_pages, page_size, Hkv]",
                  {num_pages, page_size, num_heads});
    view = {nullptr, strides[0], strides[1], strides[2], true};
  }
  view.data = scale->mutable_data_ptr<float>();
  return view;
}

}  // namespace dflash
