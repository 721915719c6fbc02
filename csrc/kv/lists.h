// Lists of tensors, one for each layer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/tensor.h"

namespace dflash {

// name[idx], one tensor of a list
inline std::string element_name(std::string name, size_t idx) {
  name.append(1, '[').append(std::to_string(idx)).append(1, ']');
  return name;
}

}  // namespace dflash
