// session_text.h: the state of a job, as the daemon knows it, in words.
#pragma once

#include <string>
#include <string_view>

#include "client/live/sessions.h"

namespace cgdebug::cli {

// "alive", "stalled", "exited", "died".
std::string_view StateName(const live::Session& session);
// "alive", "stalled 1m15s", "died 4s ago".
std::string StateText(const live::Session& session);

}  // namespace cgdebug::cli
