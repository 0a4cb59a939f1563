#include "client/cli/condition.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace cgdebug::cli {

Result<void> ParseCondition(const std::string& text, layout::SlotControl* control) {
  const std::size_t above = text.find('>');
  const std::string_view compared = std::string_view(text).substr(0, std::min(above, text.size()));
  if (text == "nan") {
    control->trigger = layout::ControlTrigger::kNonfinite;
  } else if (text == "inf") {
    control->trigger = layout::ControlTrigger::kInf;
  } else if (text == "changed") {
    control->trigger = layout::ControlTrigger::kChanged;
  } else if (text == "mismatch") {
    control->trigger = layout::ControlTrigger::kMismatch;
  } else if (above != std::string::npos && (compared == "absmax" || compared == "abs_max")) {
    char* end = nullptr;
    const char* number = text.c_str() + above + 1;
    const double threshold = std::strtod(number, &end);
    if (end == number || *end != '\0' || !std::isfinite(threshold) || threshold < 0) {
      return Error{"--on " + text + ": write for example --on 'absmax>1e4'"};
    }
    control->trigger = layout::ControlTrigger::kAbsMax;
    control->threshold = threshold;
  } else {
    return Error{"--on is nan (NaN or Inf), inf, 'absmax>NUMBER', changed or mismatch, not '" +
                 text + "'"};
  }
  return {};
}

}  // namespace cgdebug::cli
