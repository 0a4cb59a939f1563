#include "daemon/serve/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "daemon/core/base/session_selector.h"
#include "daemon/core/base/suggest.h"

namespace cgdebug::serve {

bool MatchesSession(const pipeline::SessionIdentity& session, std::string_view selector) {
  return selector.empty() || selector == session.key ||
         NamesSession(selector, session.label, session.run_id, session.pid, session.uuid);
}

WhichSlots ToWhich(const v1::Which& which) {
  WhichSlots wanted{.graph = which.graph()};
  if (which.has_shape()) {
    wanted.shape.emplace(which.shape().sizes().begin(), which.shape().sizes().end());
  }
  return wanted;
}

bool MatchesWhich(const pipeline::Registry& registry, const pipeline::SlotIdentity& slot,
                  const v1::Which& which) {
  const WhichSlots wanted = ToWhich(which);
  if (wanted.selects_all()) return true;
  const std::string label = wanted.graph.empty() ? "" : registry.PlaceOf(slot).graph;
  return wanted.Matches(slot.registration.graph_id, label, slot.shape);
}

void SetNoSession(const std::string& selector, const std::vector<pipeline::SessionRecord>& sessions,
                  v1::Error* error) {
  error->set_code(v1::Error::NO_SESSION);
  if (sessions.empty()) {
    error->set_message(
        (selector.empty()
             ? std::string("no job with a probe has been seen")
             : fmt::format("no session '{}': no job with a probe has been seen", selector)) +
        ". A job shows up when its first probe sees a tensor. Type: cgdebug-cli tail -f");
    return;
  }
  std::vector<std::string> names;
  for (const pipeline::SessionRecord& record : sessions) {
    names.push_back(record.session->label);
    names.push_back(record.session->key);
  }
  for (const std::string& name : CloseNames(selector, names)) error->add_close(name);
  error->set_message(fmt::format("no session '{}' ({} known).{} Type: cgdebug-cli ps -a", selector,
                                 sessions.size(), DidYouMean(selector, names)));
}

std::string SameSession(const std::string& selector) {
  return selector.empty() ? "" : fmt::format(" -s '{}'", selector);
}

void SetNoProbe(const std::string& probe, const std::string& selector,
                const std::vector<pipeline::SessionRecord>& sessions,
                const std::vector<std::string>& names, v1::Error* error) {
  const std::set<std::string> distinct(names.begin(), names.end());
  const std::vector<std::string> unique(distinct.begin(), distinct.end());
  error->set_code(v1::Error::NO_PROBE);
  const bool is_job = std::any_of(sessions.begin(), sessions.end(), [&](const auto& record) {
    return MatchesSession(*record.session, probe);
  });
  if (is_job) {
    error->set_message(fmt::format(
        "'{0}' is a job, not a probe. Type the command with -s '{0}', or: cgdebug-cli probes -s "
        "'{0}'",
        probe));
    return;
  }
  const std::string where = sessions.size() == 1 ? "session " + sessions.front().session->label
                                                 : fmt::format("{} sessions", sessions.size());
  error->set_message(
      fmt::format("no probe matches '{}' in {} ({} probe{}).{} Type: cgdebug-cli probes{}", probe,
                  where, unique.size(), unique.size() == 1 ? "" : "s", DidYouMean(probe, unique),
                  SameSession(selector)));
  for (const std::string& name : CloseNames(probe, unique)) error->add_close(name);
}

std::optional<std::vector<pipeline::SessionRecord>> SelectSessions(
    const pipeline::Registry& registry, const std::string& selector, v1::Error* error) {
  std::vector<pipeline::SessionRecord> sessions = registry.Sessions();
  std::vector<pipeline::SessionRecord> selected;
  std::copy_if(sessions.begin(), sessions.end(), std::back_inserter(selected),
               [&](const auto& record) { return MatchesSession(*record.session, selector); });
  if (selected.empty() && !selector.empty()) {
    SetNoSession(selector, sessions, error);
    return std::nullopt;
  }
  return selected;
}

}  // namespace cgdebug::serve
