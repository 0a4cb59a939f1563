// status.h: asks the daemon what it says of itself, and ends it.
#pragma once

#include <string>

#include "client/live/recordings.h"
#include "client/live/sessions.h"
#include "daemon/core/answers/status.h"

namespace cgdebug::live {

using answers::Skipped;
using answers::Status;

Result<Status> GetStatus(client::Client& client, const std::string& session = "");

using answers::Pruned;
// Returns when they are forgotten, or after five seconds.
Result<Pruned> Prune(client::Client& client);

// Ends the daemon, with `force` even while sessions are alive. Returns what the daemon answers.
Result<std::string> Shutdown(client::Client& client, bool force);
// Everything that jobs did before this call is known to the daemon when it returns. False: it took
// too long.
Result<bool> Sync(client::Client& client);

// Whether the daemon's last error says that there is no such session.
bool SaidNoSession(const client::Client& client);

}  // namespace cgdebug::live
