#include "daemon/core/words/condition.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace cgdebug::words {
namespace {

using layout::ControlTrigger;

constexpr std::pair<std::string_view, ControlTrigger> kPlain[] = {
    {"nan", ControlTrigger::kNonfinite},
    {"inf", ControlTrigger::kInf},
    {"changed", ControlTrigger::kChanged},
    {"mismatch", ControlTrigger::kMismatch},
};

}  // namespace

Result<Condition> ParseCondition(const std::string& text, std::string_view what) {
  for (const auto& [word, trigger] : kPlain) {
    if (text == word) return Condition{trigger, 0};
  }
  const std::size_t above = text.find('>');
  const std::string_view compared = std::string_view(text).substr(0, above);
  if (above == std::string::npos || (compared != "absmax" && compared != "abs_max")) {
    return Error{std::string(what) +
                 " is nan (NaN or Inf), inf, 'absmax>NUMBER', changed or mismatch, not '" + text +
                 "'"};
  }
  // Not strtod, which takes blanks and hexadecimal digits, and another point in another locale.
  const char* const last = text.c_str() + text.size();
  const char* number = text.c_str() + above + 1;
  if (*number == '+') ++number;
  double threshold = 0;
  const auto [end, failure] = std::from_chars(number, last, threshold);
  if (failure != std::errc() || end != last || !std::isfinite(threshold) || threshold < 0) {
    return Error{std::string(what) + " " + text + ": write for example " + std::string(what) +
                 " 'absmax>1e4'"};
  }
  return Condition{ControlTrigger::kAbsMax, threshold};
}

}  // namespace cgdebug::words
