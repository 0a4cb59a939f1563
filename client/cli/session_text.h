// session_text.h: sessions in words.
#pragma once

#include <string>
#include <string_view>

#include "proto/control.pb.h"

namespace cgdebug::cli {

// "alive", "exited" (said goodbye), "died" (did not).
std::string_view StateText(v1::Session::State state);

// Since it began; of a dead one, while it lived.
double AgeSeconds(const v1::Session& session);

// Whether `selector` (a key, a prefix of the uuid, a label, a run id or a pid; empty = all) names
// it.
bool MatchesSession(const v1::Session& session, std::string_view selector);

// Seconds since `realtime_ns`.
double SecondsSince(std::int64_t realtime_ns);

}  // namespace cgdebug::cli
