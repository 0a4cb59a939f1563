// live_source.h: a live job as a source: what the daemon holds in memory of it.
#pragma once

#include <memory>
#include <string>

#include "cgdebug/client.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::live {

// `session` as elsewhere (key, label, run id, pid); empty: the newest job, with all of its ranks.
// Requires: a connected client that outlives the source.
// Fails: no such session, or one without probes.
Result<std::unique_ptr<source::Source>> OpenLive(client::Client& client,
                                                 const std::string& session);

}  // namespace cgdebug::live
