#include "client/cli/session_text.h"

#include <chrono>

#include "daemon/base/session_selector.h"

namespace cgdebug::cli {

std::string_view StateText(v1::Session::State state) {
  switch (state) {
    case v1::Session::ALIVE:
      return "alive";
    case v1::Session::EXITED:
      return "exited";
    case v1::Session::DIED:
      return "died";
    default:
      return "unknown";
  }
}

double SecondsSince(std::int64_t realtime_ns) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return static_cast<double>(now_ns - realtime_ns) * 1e-9;
}

double AgeSeconds(const v1::Session& session) {
  if (session.state() == v1::Session::ALIVE || session.ended_ns() == 0) {
    return SecondsSince(session.created_ns());
  }
  return static_cast<double>(session.ended_ns() - session.created_ns()) * 1e-9;
}

bool MatchesSession(const v1::Session& session, std::string_view selector) {
  return selector.empty() || selector == session.key() ||
         NamesSession(selector, session.label(), session.run_id(), session.pid(), session.uuid());
}

}  // namespace cgdebug::cli
