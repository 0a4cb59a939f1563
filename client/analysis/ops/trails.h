// trails.h: how far the processes of a source came, for FindPlace().
#pragma once

#include <functional>
#include <map>

#include "client/analysis/where.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::analysis {

// What a source says of one slot; the rest is for the caller.
Passed PassedAt(const source::Slot& slot);

using Trails = std::map<source::Process, Trail>;

// The newest snapshot of each slot is how far its process came, unless later ones are missing.
// Fails: as Source::Keys() and Source::Get().
Result<Trails> ReadTrails(source::Source& source,
                          const std::function<bool(const source::Slot&)>& wants);

}  // namespace cgdebug::analysis
