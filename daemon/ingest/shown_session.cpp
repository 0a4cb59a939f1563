#include "daemon/ingest/shown_session.h"

#include <string>

#include "daemon/ingest/sigbus_guard.h"
#include "daemon/model/text.h"

namespace cgdebug::ingest {

using layout::NotSeen;
using layout::NotSeenKind;

void ShownSession::ShowToldReplica() {
  const std::string text =
      pipeline::CleanText(view_->findings().Read(layout::FindingKind::kReplica));
  if (text.empty()) return;
  destination_.registry->SetFinding(session_, layout::FindingKind::kReplica, text);
}

void ShownSession::Show(bool is_alive) {
  destination_.registry->SetSession(session_, {.shm_bytes = view_->shm_bytes(),
                                               .device_bytes = view_->device_bytes(),
                                               .step = view_->step(),
                                               .released_unread = view_->released_unread()});
  std::vector<NotSeen> all = {view_->account().refused_places(),
                              view_->account().malformed_settings(),
                              {.kind = NotSeenKind::kGivenUp, .count = view_->released_unread()}};
  // While the job lives, it is about to send them.
  if (!is_alive) {
    all.push_back({.kind = NotSeenKind::kNeverSent, .count = view_->account().rows_in_job()});
  }
  if (!SigbusGuard::Hit()) TellNotSeen(std::move(all));
}

void ShownSession::ShowCutOff() { TellNotSeen({{.kind = NotSeenKind::kCutOff, .count = 1}}); }

void ShownSession::TellNotSeen(std::vector<NotSeen> all) {
  NotSeen unreadable{.kind = NotSeenKind::kUnreadable, .count = slots_->refused().size()};
  if (!slots_->refused().empty()) unreadable.reason = slots_->refused().begin()->second.reason;
  all.push_back(std::move(unreadable));
  for (NotSeen& one : all) {
    if (one.count == 0) continue;
    one.name = pipeline::CleanText(one.name);
    one.reason = pipeline::CleanText(one.reason);
    NotSeen& told = told_[one.kind];
    if (told == one) continue;
    told = one;
    destination_.sink->NotSeen(session_, one);
  }
}

void ShownSession::ShowGraphs() {
  ring::GraphCensus graphs = view_->Graphs();
  if (!SigbusGuard::Hit()) destination_.registry->SetGraphs(session_, std::move(graphs));
}

}  // namespace cgdebug::ingest
