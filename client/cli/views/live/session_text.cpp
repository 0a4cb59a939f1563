#include "client/cli/views/live/session_text.h"

#include <fmt/format.h>

#include "daemon/core/base/duration.h"

namespace cgdebug::cli {

std::string_view StateName(const live::Session& session) {
  return live::StalledSeconds(session) > 0 ? "stalled" : NameOf(session.state);
}

std::string StateText(const live::Session& session) {
  if (const double seconds = live::StalledSeconds(session); seconds > 0) {
    return "stalled " + FormatDuration(seconds);
  }
  if (session.state == live::SessionState::kAlive) return std::string(NameOf(session.state));
  return fmt::format("{} {} ago", NameOf(session.state),
                     FormatDuration(live::SecondsSince(session.ended_ns)));
}

}  // namespace cgdebug::cli
