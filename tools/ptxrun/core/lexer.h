// PTX text into tokens.
#pragma once

#include <string_view>
#include <vector>

#include "core/ptx.h"

namespace ptxrun {

struct Token {
  enum class Form : uint8_t { kWord, kNumber, kString, kPunctuation, kEnd };
  Form form = Form::kEnd;
  std::string_view text;
  uint32_t line = 0;

  bool is(std::string_view wanted) const { return form != Form::kString && text == wanted; }
};

std::vector<Token> tokens_of(std::string_view text);

}  // namespace ptxrun
