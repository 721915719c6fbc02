#include "core/lexer.h"

#include <cctype>

namespace ptxrun {
namespace {

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

struct Scanner {
  std::string_view text;
  size_t at = 0;
  uint32_t line = 1;

  char peek(size_t ahead = 0) const { return at + ahead < text.size() ? text[at + ahead] : '\0'; }

  void skip_blank() {
    for (; at < text.size(); ++at) {
      if (peek() == '/' && peek(1) == '/') {
        while (at < text.size() && peek() != '\n') ++at;
      } else if (peek() == '/' && peek(1) == '*') {
        for (at += 2; at < text.size() && !(peek() == '*' && peek(1) == '/'); ++at) {
          line += peek() == '\n';
        }
        ++at;
      }
      if (peek() == '\n') {
        ++line;
      } else if (!std::isspace(static_cast<unsigned char>(peek()))) {
        if (peek() != '/') return;
        --at;  // another comment follows at once
      }
    }
  }

  Token next() {
    skip_blank();
    if (at >= text.size()) return {Token::Form::kEnd, "end of text", line};
    const size_t begin = at;
    const char c = peek();
    Token::Form form = Token::Form::kPunctuation;
    if (std::isdigit(static_cast<unsigned char>(c))) {
      form = Token::Form::kNumber;
      while (std::isalnum(static_cast<unsigned char>(peek()))) ++at;
    } else if (is_word_char(c)) {
      form = Token::Form::kWord;
      while (is_word_char(peek()) || (peek() == ':' && peek(1) == ':')) {
        at += peek() == ':' ? 2 : 1;  // the scope in shared::cta
      }
    } else if (c == '"') {
      form = Token::Form::kString;
      do ++at;
      while (at < text.size() && peek() != '"');
      ++at;
      return {form, text.substr(begin + 1, at - begin - 2), line};
    } else {
      ++at;
    }
    return {form, text.substr(begin, at - begin), line};
  }
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  Scanner scanner{text};
  do tokens.push_back(scanner.next());
  while (tokens.back().form != Token::Form::kEnd);
  return tokens;
}

}  // namespace ptxrun
