#include "client/cli/views/tensor/snapshot_text.h"

#include <fmt/format.h>

#include "client/analysis/ops/op_log.h"
#include "client/cli/views/terminal.h"

namespace cgdebug::cli {

std::string ControlText(const layout::SlotControl& control) {
  std::string text = control.mode == layout::ControlMode::kOff     ? "off"
                     : control.mode == layout::ControlMode::kStats ? "statistics"
                     : control.mode == layout::ControlMode::kFull  ? "values"
                                                                   : "as registered";
  if (control.every > 1) text += fmt::format(", one replay in {}", control.every);
  if (control.from > 1 && control.until != 0) {
    text += fmt::format(", replays {}..{}", control.from, control.until);
  } else if (control.from > 1) {
    text += fmt::format(", from replay {}", control.from);
  } else if (control.until != 0) {
    text += fmt::format(", {} replay{}", control.until, control.until == 1 ? "" : "s");
  }
  if (control.trigger == layout::ControlTrigger::kNonfinite) text += ", where there is NaN or Inf";
  if (control.trigger == layout::ControlTrigger::kInf) text += ", where there is Inf";
  if (control.trigger == layout::ControlTrigger::kChanged) text += ", where it changed";
  if (control.trigger == layout::ControlTrigger::kMismatch) text += ", on a failed comparison";
  if (control.trigger == layout::ControlTrigger::kAbsMax) {
    text += fmt::format(", where abs max > {:g}", control.threshold);
  }
  return text;
}

std::string ProbeText(const std::string& name, std::uint32_t invocation) {
  return Printable(name) + (invocation == 0 ? "" : "#" + std::to_string(invocation));
}

std::string OpsCommandOf(const std::string& session_key, const source::Slot& slot,
                         std::uint64_t replay) {
  return "cgdebug-cli ops " + ShellWord(analysis::OpLogPlaceText(session_key, slot, replay));
}

}  // namespace cgdebug::cli
