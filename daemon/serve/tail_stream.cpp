#include "daemon/serve/tail_stream.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "daemon/serve/messages.h"
#include "daemon/serve/selection.h"

namespace cgdebug::serve {
namespace {

constexpr std::size_t kReadAtOnce = 1024;
constexpr std::size_t kMaxSlotCache = 65536;

using Moment = std::pair<std::uint64_t, std::uint64_t>;  // serial of the replay, graph order

Moment MomentOf(const pipeline::Snapshot& snapshot) {
  return {snapshot.serial, snapshot.slot->registration.order};
}

// How many rows of op logs the event holds.
std::size_t RowsOf(const pipeline::Event& event) {
  if (const auto* rows = std::get_if<pipeline::Rows>(&event.what)) return rows->snapshots.size();
  const auto* loss = std::get_if<pipeline::Loss>(&event.what);
  return loss == nullptr ? 0 : loss->row_count();
}

// The snapshot that the event is about; null if it is not about one.
const pipeline::Snapshot* SnapshotOf(const pipeline::Event& event) {
  if (const auto* snapshot = std::get_if<pipeline::SnapshotPtr>(&event.what)) {
    return snapshot->get();
  }
  if (const auto* rows = std::get_if<pipeline::Rows>(&event.what)) {
    return rows->snapshots.front().get();
  }
  if (const auto* line = std::get_if<pipeline::PrintLine>(&event.what)) return line->snapshot.get();
  if (const auto* unequal = std::get_if<pipeline::Unequal>(&event.what)) {
    return unequal->snapshot.get();
  }
  const auto* failure = std::get_if<pipeline::CompareFailure>(&event.what);
  return failure == nullptr ? nullptr : failure->snapshot.get();
}

// Puts events in the order in which they happened: the daemon reads slot by slot. A session comes
// before what it did and ends after it. A loss stays before the snapshot that follows it in its
// slot.
void SortByTime(std::vector<pipeline::EventPtr>* events) {
  struct Placed {
    Moment moment;
    pipeline::EventPtr event;
  };
  std::vector<Placed> placed;
  std::map<pipeline::SlotPtr, Moment> next;  // by slot: its next snapshot after this event
  for (auto event = events->rbegin(); event != events->rend(); ++event) {
    Moment moment = {UINT64_MAX, 0};
    if (const pipeline::Snapshot* snapshot = SnapshotOf(**event)) {
      moment = next[snapshot->slot] = MomentOf(*snapshot);
    } else if (const auto* loss = std::get_if<pipeline::Loss>(&(*event)->what)) {
      const auto after = next.find(loss->slot);
      if (after != next.end()) moment = after->second;
    } else if (std::holds_alternative<pipeline::SessionChange>((*event)->what)) {
      next.clear();
    }
    placed.push_back({moment, std::move(*event)});
  }
  std::ranges::reverse(placed);
  const auto is_session = [](const Placed& one) {
    return std::holds_alternative<pipeline::SessionChange>(one.event->what);
  };
  for (auto begin = placed.begin(); begin != placed.end();) {
    const auto end = std::find_if(begin, placed.end(), is_session);
    std::stable_sort(begin, end,
                     [](const Placed& a, const Placed& b) { return a.moment < b.moment; });
    begin = end == placed.end() ? end : end + 1;
  }
  std::ranges::transform(placed, events->begin(), [](Placed& one) { return std::move(one.event); });
}

}  // namespace

TailStream::TailStream(const Model& model, const v1::TailRequest& request, Selector selector)
    : model_(model), request_(request), selector_(std::move(selector)) {}

std::optional<TailStream> TailStream::Open(const Model& model, const v1::TailRequest& request,
                                           v1::Error* error) {
  const std::vector<std::string> patterns(request.probes().begin(), request.probes().end());
  Result<Selector> selector = Selector::Parse(patterns);
  if (!selector.ok()) {
    error->set_code(v1::Error::BAD_REQUEST);
    error->set_message(selector.error().message);
    return std::nullopt;
  }
  TailStream stream(model, request, *std::move(selector));
  std::vector<pipeline::EventPtr> events = model.events->All(&stream.cursor_);
  // Sessions are read after the events: if the end of a session is not among the events, the
  // session is alive here, or its end is still to be read.
  const auto sessions = SelectSessions(*model.registry, request.session(), error);
  if (!sessions) return std::nullopt;
  for (const pipeline::SessionRecord& record : *sessions) {
    if (!stream.SelectsSession(*record.session)) continue;
    stream.saw_session_ = true;
    if (record.state == pipeline::SessionState::kAlive) stream.alive_.insert(record.session->uuid);
  }
  std::size_t left = request.last();  // starts and ends of sessions are shown but not counted
  if (left > 0) {
    std::erase_if(events, [&](const auto& event) { return !stream.Selects(*event); });
    SortByTime(&events);
  }
  for (auto event = events.rbegin(); event != events.rend() && left > 0; ++event) {
    stream.pending_.emplace_front(*event);
    if (std::holds_alternative<pipeline::SessionChange>((*event)->what)) continue;
    for (std::size_t part = stream.PartsOf(**event); part > 0 && left > 0;) {
      if (!stream.SelectsPart(**event, --part)) continue;
      stream.part_ = part;
      --left;
    }
    if (left > 0) stream.part_ = 0;
  }
  // If no job has had these probes, old starts and ends of sessions say nothing about them.
  const bool found = left < request.last();
  if (!found && !stream.selector_.selects_everything()) {
    stream.pending_.clear();
    stream.part_ = 0;
  }
  for (const auto& pending : stream.pending_) {
    stream.pending_rows_ += RowsOf(*std::get<pipeline::EventPtr>(pending));
  }
  stream.pending_.emplace_back(std::in_place_type<v1::TailReply>);
  std::get<v1::TailReply>(stream.pending_.back()).set_caught_up(true);
  return stream;
}

bool TailStream::SelectsSession(const pipeline::SessionIdentity& session) const {
  if (request_.has_rank() && session.rank != request_.rank()) return false;
  const auto has_it = [&session](const v1::TailRequest::Ranks& ranks) {
    return ranks.first() <= session.rank && session.rank <= ranks.last();
  };
  if (request_.ranks_size() > 0 && std::ranges::none_of(request_.ranks(), has_it)) return false;
  return MatchesSession(session, request_.session());
}

bool TailStream::SelectsSlot(const pipeline::SlotPtr& slot) {
  if (selector_.selects_everything() && !request_.has_which()) return true;
  if (selected_slots_.size() > kMaxSlotCache) selected_slots_.clear();
  const auto [found, is_new] = selected_slots_.try_emplace(slot, false);
  if (is_new) {
    found->second =
        selector_.Matches(slot->probe) && MatchesWhich(*model_.registry, *slot, request_.which());
  }
  return found->second;
}

std::size_t TailStream::PartsOf(const pipeline::Event& event) const {
  return request_.pages() ? 1 : std::max<std::size_t>(RowsOf(event), 1);
}

bool TailStream::SelectsPart(const pipeline::Event& event, std::size_t part) {
  if (const auto* rows = std::get_if<pipeline::Rows>(&event.what); rows && !request_.pages()) {
    return SelectsSnapshot(*rows->snapshots[part], false);
  }
  const auto* loss = std::get_if<pipeline::Loss>(&event.what);
  if (loss != nullptr && loss->row_count() > 0 && !request_.pages()) {
    return SelectsSlot((*loss->rows)[part]);
  }
  return true;  // Selects() was asked
}

void TailStream::FillPart(const pipeline::Event& event, std::size_t part,
                          v1::TailReply* reply) const {
  const auto* rows = std::get_if<pipeline::Rows>(&event.what);
  if (rows != nullptr && !request_.pages()) {
    return Fill(*rows->snapshots[part], *model_.registry, reply->mutable_snapshot());
  }
  const auto* loss = std::get_if<pipeline::Loss>(&event.what);
  if (loss != nullptr && loss->row_count() > 0 && !request_.pages()) {
    pipeline::Event one{.number = event.number, .session = event.session};
    one.what = pipeline::Loss{(*loss->rows)[part], loss->count, loss->before_replay, loss->cause};
    return Fill(one, *model_.registry, reply);
  }
  Fill(event, *model_.registry, reply);
}

// Losses, and starts and ends of sessions, belong to every selection: without them a gap would look
// like silence.
bool TailStream::Selects(const pipeline::Event& event) {
  if (!SelectsSession(*event.session)) return false;
  if (std::holds_alternative<pipeline::SessionChange>(event.what)) return true;
  if (const auto* loss = std::get_if<pipeline::Loss>(&event.what)) {
    if (SelectsSlot(loss->slot)) return true;
    return loss->rows != nullptr &&
           std::ranges::any_of(*loss->rows, [&](const auto& row) { return SelectsSlot(row); });
  }
  if (const auto* frozen = std::get_if<pipeline::Frozen>(&event.what)) {
    return SelectsSlot(frozen->slot);
  }
  const bool is_failed = std::holds_alternative<pipeline::CompareFailure>(event.what) ||
                         std::holds_alternative<pipeline::Unequal>(event.what);
  if (is_failed) {
    const bool wanted = request_.only() == v1::TailRequest::ALL ||
                        request_.only() == v1::TailRequest::FAILED ||
                        request_.only() == v1::TailRequest::FINDINGS;
    return wanted && SelectsSlot(SnapshotOf(event)->slot);
  }
  if (const auto* rows = std::get_if<pipeline::Rows>(&event.what)) {
    return std::ranges::any_of(rows->snapshots,
                               [&](const auto& row) { return SelectsSnapshot(*row, false); });
  }
  if (const auto* line = std::get_if<pipeline::PrintLine>(&event.what)) {
    return SelectsSnapshot(*line->snapshot, true);
  }
  return SelectsSnapshot(*std::get<pipeline::SnapshotPtr>(event.what), false);
}

bool TailStream::SelectsSnapshot(const pipeline::Snapshot& snapshot, bool is_printed) {
  switch (request_.only()) {
    case v1::TailRequest::FINDINGS:
      if (!is_printed && (!snapshot.stats.has_nonfinite || snapshot.is_mask)) return false;
      break;
    case v1::TailRequest::NONFINITE:
      if (!snapshot.stats.has_nonfinite) return false;
      break;
    case v1::TailRequest::CHANGED:
      if (!snapshot.changed) return false;
      break;
    case v1::TailRequest::FAILED:
      return false;
    default:
      break;
  }
  return SelectsSlot(snapshot.slot);
}

std::uint64_t TailStream::CountWanted(const pipeline::Event& event) {
  const auto* rows = std::get_if<pipeline::Rows>(&event.what);
  if (rows == nullptr) return 1;
  return static_cast<std::uint64_t>(std::ranges::count_if(
      rows->snapshots, [&](const auto& row) { return SelectsSnapshot(*row, false); }));
}

void TailStream::Collect() {
  if (!request_.follow()) return;
  while (true) {
    const std::vector<pipeline::EventPtr> events =
        model_.events->Read(&cursor_, kReadAtOnce, &missed_);
    for (const pipeline::EventPtr& event : events) Take(event);
    if (events.size() < kReadAtOnce) return;
  }
}

void TailStream::Take(const pipeline::EventPtr& event) {
  if (!Selects(*event)) return;
  if (const auto* change = std::get_if<pipeline::SessionChange>(&event->what)) {
    saw_session_ = true;
    if (change->ended) {
      alive_.erase(event->session->uuid);
    } else {
      alive_.insert(event->session->uuid);
    }
  }
  const std::size_t rows = RowsOf(*event);
  if (pending_.size() >= kMaxPending || (rows > 0 && pending_rows_ + rows > kMaxPendingRows)) {
    missed_[event->session] += CountWanted(*event);
    return;
  }
  TellMissed();
  pending_.emplace_back(event);
  pending_rows_ += rows;
}

void TailStream::TellMissed() {
  std::erase_if(missed_, [&](const auto& missed) {
    if (SelectsSession(*missed.first)) {
      v1::TailReply reply;
      reply.mutable_loss()->set_session(missed.first->key);
      reply.mutable_loss()->set_rank(missed.first->rank);
      reply.mutable_loss()->set_count(missed.second);
      reply.mutable_loss()->set_cause(
          "this client read too slowly; the daemon has consumed them. Select fewer probes");
      pending_.emplace_back(std::move(reply));
    }
    return true;
  });
}

std::optional<v1::TailReply> TailStream::Next() {
  if (pending_.empty()) TellMissed();
  while (!pending_.empty()) {
    v1::TailReply reply;
    if (auto* said = std::get_if<v1::TailReply>(&pending_.front())) {
      reply = std::move(*said);
      pending_.pop_front();
      return reply;
    }
    const pipeline::EventPtr event = std::get<pipeline::EventPtr>(pending_.front());
    const std::size_t parts = PartsOf(*event);
    while (part_ < parts && !SelectsPart(*event, part_)) ++part_;
    const bool is_one = part_ < parts;
    if (is_one) FillPart(*event, part_++, &reply);
    while (part_ < parts && !SelectsPart(*event, part_)) ++part_;
    if (part_ >= parts) {
      pending_.pop_front();
      pending_rows_ -= RowsOf(*event);
      part_ = 0;
    }
    if (is_one) return reply;
  }
  return std::nullopt;
}

bool TailStream::finished() const {
  if (!pending_.empty() || !missed_.empty()) return false;
  if (!request_.follow()) return true;
  return request_.until_exit() && saw_session_ && alive_.empty();
}

}  // namespace cgdebug::serve
