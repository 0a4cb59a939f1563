// selection.h: which session a client means, and what to answer if there is none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/core/base/graph_labels.h"
#include "daemon/model/registry.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

// `selector`: empty for every session, else its key, the beginning of its uuid (4 digits at least),
// its label, its run id or its pid.
bool MatchesSession(const pipeline::SessionIdentity& session, std::string_view selector);

WhichSlots ToWhich(const v1::Which& which);

// Whether the slot is one that `which` means.
bool MatchesWhich(const pipeline::Registry& registry, const pipeline::SlotIdentity& slot,
                  const v1::Which& which);

// Fails: nullopt with *error when a selector matches none.
std::optional<std::vector<pipeline::SessionRecord>> SelectSessions(
    const pipeline::Registry& registry, const std::string& selector, v1::Error* error);

// "no job with a probe ..." for a request that needs a session when there is none.
void SetNoSession(const std::string& selector, const std::vector<pipeline::SessionRecord>& sessions,
                  v1::Error* error);
// " -s 'train'": the option that a proposed command repeats, so that it means the same sessions;
// nothing for an empty `selector`.
std::string SameSession(const std::string& selector);
// `selector`: what the request calls the sessions.
void SetNoProbe(const std::string& probe, const std::string& selector,
                const std::vector<pipeline::SessionRecord>& sessions,
                const std::vector<std::string>& names, v1::Error* error);

}  // namespace cgdebug::serve
