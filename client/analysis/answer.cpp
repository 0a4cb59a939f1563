#include "client/analysis/answer.h"

#include <algorithm>
#include <cstddef>

namespace cgdebug::analysis {

void Answer::Add(Severity severity, std::string_view text) {
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    statements_.push_back({severity, std::string(text.substr(0, end))});
    if (end == text.size()) return;
    text.remove_prefix(end + 1);
    severity = Severity::kPlain;
  }
}

std::string Answer::title() const {
  if (title_) return *title_;
  return statements_.empty() ? "" : statements_.front().text;
}

std::string Answer::Text() const {
  std::string text;
  for (const Statement& statement : statements_) {
    text += (&statement == statements_.data() ? "" : "\n") + statement.text;
  }
  return text;
}

}  // namespace cgdebug::analysis
