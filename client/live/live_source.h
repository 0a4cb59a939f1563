// live_source.h: a live job as a source: what the daemon holds in memory of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cgdebug/client.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::live {

// `session` as elsewhere (key, label, run id, pid); empty: the job that comes first
// (ComesFirst()), with all of its ranks.
// Requires: a connected client that outlives the source.
// Fails: no such session, or one without probes.
Result<std::unique_ptr<source::Source>> OpenLive(client::Client& client,
                                                 const std::string& session);

// One op log of a live job, without asking for the job's other slots.
struct LiveLog {
  // Has the rows of the log alone; none if the job has no such log.
  std::unique_ptr<source::Source> source;
  std::vector<std::string> others = {};   // what the job's other logs are called
  std::vector<std::uint64_t> ranks = {};  // that have op logs, ascending
  bool is_whole = false;                  // it has the whole job instead, with all of its logs
};

// `session`: as above. `graph`: as analysis::OpLogChoice. Looks only at ranks that `wants_rank`.
// Requires, Fails: as above, except that a job may have no probe.
Result<LiveLog> OpenLiveLog(client::Client& client, const std::string& session,
                            const std::string& graph, const std::function<bool(int)>& wants_rank);

}  // namespace cgdebug::live
