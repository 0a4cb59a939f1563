#include "client/cli/top/filter_line.h"

namespace cgdebug::cli {
namespace {

// "blk3" finds every name with that in it; a pattern is taken as it is.
std::string PatternOf(const std::string& typed) {
  const bool is_pattern =
      typed.find_first_of("*?[,") != std::string::npos || typed.starts_with("re:");
  if (typed.empty() || is_pattern) return typed;
  if (typed.starts_with('!')) return "!*" + typed.substr(1) + "*";
  return "*" + typed + "*";
}

}  // namespace

void FilterLine::Begin(const std::string& filter) {
  typed_ = before_ = filter;
  is_over_ = false;
}

bool FilterLine::Press(const Key& key) {
  using enum Key::Kind;
  if (key.kind == kEscape) typed_ = before_;
  if (key.kind == kBackspace) {
    while (!typed_.empty() && (static_cast<unsigned char>(typed_.back()) & 0xc0) == 0x80) {
      typed_.pop_back();
    }
    if (!typed_.empty()) typed_.pop_back();
  }
  if (key.kind == kText) typed_ += key.text;
  const Result<Selector> selector = Selector::ParseList(PatternOf(typed_));
  if (selector.ok()) selector_ = *selector;
  is_over_ = key.kind == kEscape || (key.kind == kEnter && selector.ok());
  error_ = selector.ok() || is_over_ ? "" : selector.error().message;
  return selector.ok();
}

}  // namespace cgdebug::cli
