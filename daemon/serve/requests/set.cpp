#include "daemon/serve/requests/set.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/glob.h"
#include "daemon/core/base/realtime.h"
#include "daemon/serve/messages.h"
#include "daemon/serve/row_values.h"
#include "daemon/serve/selection.h"

namespace cgdebug::serve {
namespace {

using pipeline::SessionRecord;
using pipeline::SlotRecord;

// Why a live slot cannot be changed, the most telling first.
enum class CannotSet { kRow, kEagerRow, kWithoutRing };

std::optional<CannotSet> WhyNotSet(const pipeline::SlotIdentity& slot, const v1::Control& control) {
  if (pipeline::IsOpLogRow(slot)) return CannotSet::kRow;
  // What it needs to send its values is decided when the op runs.
  if (pipeline::IsOfOpLog(slot) && control.mode() == v1::Control::FULL) return CannotSet::kEagerRow;
  const bool is_for_rings = control.trigger() == v1::Control::MISMATCH;
  if (is_for_rings && !slot.IsOnDevice()) return CannotSet::kWithoutRing;
  return std::nullopt;
}

std::string TextOf(CannotSet why, const pipeline::SlotIdentity& slot, bool wants_values) {
  switch (why) {
    case CannotSet::kRow:
      return fmt::format(
          "'{}' is a row of an op log: all rows of a graph leave it together, as statistics, so "
          "one of them cannot be changed{}",
          slot.probe, wants_values ? ". " + HowToGetValues(slot) : "");
    case CannotSet::kEagerRow:
      return fmt::format("'{}' is a row of an eager log, which has statistics alone. {}",
                         slot.probe, HowToGetValues(slot));
    case CannotSet::kWithoutRing:
      break;
  }
  return fmt::format(
      "mismatch stops rings in device memory, and '{}' has none there: "
      "TensorRecord(where=\"device\")",
      slot.probe);
}

}  // namespace

void AnswerSet(const v1::SetRequest& request, const Model& model, Answer* answer) {
  const std::vector<std::string> patterns(request.probes().begin(), request.probes().end());
  const Result<Selector> selector = Selector::Parse(patterns);
  const Result<pipeline::ControlChange> wanted = ToChange(request, RealtimeNs());
  if (!selector.ok() || !wanted.ok() || patterns.empty()) {
    return SetError(answer, v1::Error::BAD_REQUEST,
                    !selector.ok() ? selector.error().message
                    : !wanted.ok() ? wanted.error().message
                                   : "which probes? Type: cgdebug-cli set '*' ...");
  }
  const auto sessions = SelectSessions(*model.registry, request.session(), answer->mutable_error());
  if (!sessions) return;
  const bool any_alive = std::any_of(sessions->begin(), sessions->end(), [](const auto& session) {
    return session.state == pipeline::SessionState::kAlive;
  });
  if (!any_alive) {
    return SetError(answer, v1::Error::NO_SESSION,
                    "a probe can be changed while its job is alive, and none is. "
                    "Type: cgdebug-cli ps -a");
  }
  answer->clear_error();
  std::vector<std::string> names;
  std::set<std::string> changed;
  std::vector<pipeline::ControlChange> changes;
  std::map<CannotSet, pipeline::SlotPtr> refused;  // the first of each kind
  for (const SessionRecord& session : *sessions) {
    if (session.state != pipeline::SessionState::kAlive) continue;
    for (const SlotRecord& slot : model.registry->Slots(session.session)) {
      if (slot.retired) continue;
      names.push_back(slot.slot->probe);
      if (!selector->Matches(slot.slot->probe)) continue;
      if (!MatchesWhich(*model.registry, *slot.slot, request.which())) continue;
      if (const auto why = WhyNotSet(*slot.slot, request.control())) {
        if (!layout::IsNoRow(slot.slot->op)) refused.try_emplace(*why, slot.slot);
        continue;
      }
      changed.insert(session.session->uuid + slot.slot->probe);
      changes.push_back(*wanted);
      changes.back().slot = slot.slot;
    }
  }
  if (changes.empty() && !refused.empty()) {
    const auto& [why, slot] = *refused.begin();
    return SetError(answer, v1::Error::BAD_REQUEST,
                    TextOf(why, *slot, request.control().mode() == v1::Control::FULL));
  }
  if (changes.empty()) {
    return SetNoProbe(fmt::format("{}", fmt::join(patterns, " ")), request.session(), *sessions,
                      names, answer->mutable_error());
  }
  answer->Set(answers::Controlled{.slots = static_cast<std::uint32_t>(changes.size()),
                                  .probes = static_cast<std::uint32_t>(changed.size()),
                                  .expires_ns = wanted->control.expires_ns});
  model.controls->Push(std::move(changes));
}

}  // namespace cgdebug::serve
