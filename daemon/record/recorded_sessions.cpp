#include "daemon/record/recorded_sessions.h"

namespace cgdebug::pipeline {

std::optional<std::uint32_t> RecordedSessions::Add(const SessionPtr& session) {
  if (const auto known = ids_.find(session); known != ids_.end()) return known->second;
  const auto added = writer_->AddSession(*session);
  if (!added.ok()) return std::nullopt;
  ids_.emplace(session, *added);
  alive_.insert(session);
  labels_.push_back(session->label);
  return *added;
}

void RecordedSessions::BeginNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) {
  layout::NotSeen::Gone& before = gone_before_[{session, not_seen.kind}];
  before = not_seen.gone;
  if (not_seen.kind == layout::NotSeenKind::kGivenUp) before.count = not_seen.count;
}

layout::NotSeen RecordedSessions::SinceBegin(const SessionPtr& session,
                                             const layout::NotSeen& told) const {
  const auto before = gone_before_.find({session, told.kind});
  return told.Without(before == gone_before_.end() ? layout::NotSeen::Gone{} : before->second);
}

}  // namespace cgdebug::pipeline
