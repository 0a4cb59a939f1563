#include "daemon/record/active_recording.h"

#include <algorithm>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/log/log.h"
#include "daemon/record/to_recording.h"

namespace cgdebug::pipeline {
namespace {

using layout::LossCause;
using recording::StopReason;
using Place = SlotProgress::Place;

// As the request says; `options` where it says nothing.
recording::WriterOptions OptionsOf(const RecordRequest& asked, recording::WriterOptions options) {
  if (asked.roll_bytes != 0) options.roll_bytes = asked.roll_bytes;
  if (asked.min_free_bytes) {
    options.min_free_bytes = *asked.min_free_bytes;
    options.min_free_percent = 0;
  }
  options.gather = true;  // Flush() comes before the credit
  options.only_unfinished = !asked.to_disk_only;
  options.durability = asked.durability.value_or(options.durability);
  if (options.max_bytes == 0 || (asked.max_bytes != 0 && asked.max_bytes < options.max_bytes)) {
    options.max_bytes = asked.max_bytes;
  }
  return options;
}

}  // namespace

ActiveRecording::ActiveRecording(std::uint64_t id, RecordSelection selection,
                                 std::int64_t started_ns,
                                 std::unique_ptr<recording::RecordingWriter> writer)
    : id_(id),
      selection_(std::move(selection)),
      started_ns_(started_ns),
      end_(&request()),
      writer_(std::move(writer)),
      sessions_(writer_.get()) {}

Result<std::unique_ptr<ActiveRecording>> ActiveRecording::Start(std::uint64_t id,
                                                                RecordRequest request,
                                                                recording::WriterOptions options) {
  const std::int64_t started_ns = RealtimeNs();
  auto selection = RecordSelection::Parse(std::move(request), started_ns);
  if (!selection.ok()) return selection.error();
  const RecordRequest& asked = selection->request();
  auto writer = recording::RecordingWriter::Open(asked.directory, OptionsOf(asked, options));
  if (!writer.ok()) return writer.error();
  return std::unique_ptr<ActiveRecording>(
      new ActiveRecording(id, *std::move(selection), started_ns, *std::move(writer)));
}

RecordingInfo ActiveRecording::info() const {
  RecordingInfo info;
  info.id = id_;
  info.directory = request().directory;
  info.probes = request().probes;
  info.sessions = sessions_.labels();
  info.started_ns = started_ns_;
  info.slot_count = slot_count_;
  static_cast<recording::WriterStatus&>(info) = writer_->status();
  info.state = recording::ToText(info.stopped);
  info.active = info.stopped == StopReason::kNone;
  return info;
}

void ActiveRecording::Open(const SlotPtr& slot, std::uint64_t seen, std::uint64_t seen_replay,
                           std::uint64_t suppressed) {
  if (end_.has_begun() || slots_.contains(slot)) return;
  const auto session = sessions_.Add(slot->session);
  if (!session) return;
  recording::Slot to = ToRecording(*slot);
  to.session = *session;
  SlotProgress state;
  state.in_body = slot->IsInBody();
  state.every = selection_.EveryOf(*slot);
  state.period = PeriodOf(*slot);
  // How many snapshots a period wanted in a body, nobody can tell from replays: each counts.
  to.every = state.in_body ? 1 : state.every;
  to.from_ordinal = seen;
  to.from_replay = seen_replay;
  state.from_replay = seen_replay;
  state.suppressed = state.kept_back = suppressed;
  const auto added = writer_->AddSlot(std::move(to));
  if (!added.ok()) return;
  state.id = *added;
  const auto last = writer_->last(*added);
  state.next_ordinal = last.ordinal + 1;
  state.last_replay = last.replay;
  slots_.emplace(slot, state);
  ++slot_count_;
}

void ActiveRecording::Account(SlotProgress* state, const SlotProgress::Missing& missing) {
  if (const auto loss = state->Account(missing)) Note(writer_->AddLoss(*loss));
}

// `before`: the slot's state as it was at the snapshot before.
void ActiveRecording::LoseKeptBack(const SlotPtr& slot, const SlotProgress& before,
                                   std::uint64_t last_replay, std::uint64_t lost) {
  const std::uint64_t count = before.KeptBackUpTo(last_replay, lost);
  if (count == 0) return;
  LoseReplays(slot, LossCause::kStoodStill, count, before.last_replay + 1, last_replay);
  slots_.at(slot).kept_back += count;
}

void ActiveRecording::Consume(const StoredSnapshot& stored, const ComparisonPtr& comparison,
                              std::uint64_t suppressed) {
  const auto& [snapshot, payload] = stored;
  const auto found = slots_.find(snapshot->slot);
  if (found == slots_.end()) return;
  SlotProgress& state = found->second;
  state.suppressed = std::max(state.suppressed, suppressed);
  if (state.done || snapshot->ordinal < state.next_ordinal) {
    if (state.done) end_.NoteBeyond();
    return;
  }
  const Place place = state.PlaceOf(snapshot->replay, request().align, request().replays);
  if (place == Place::kInside) {
    SlotProgress before = state;
    if (request().align >= 2) before.last_replay = std::max(before.last_replay, state.first_replay);
    if (suppressed != 0 && !snapshot->forced) {
      LoseKeptBack(snapshot->slot, before, snapshot->replay - 1,
                   snapshot->ordinal - before.next_ordinal);
    }
    Account(&state, {.last_ordinal = snapshot->ordinal - 1,
                     .last_replay = snapshot->replay - (state.in_body ? 0 : 1),
                     .before_replay = snapshot->replay,
                     .before_forced = snapshot->forced});
  }
  if (snapshot->ordinal > state.until) return;
  state.next_ordinal = snapshot->ordinal + 1;
  state.last_replay = snapshot->replay;
  state.last_forced = snapshot->forced;
  state.done = place == Place::kAfter;
  if (state.done) end_.NoteBeyond();
  if (place != Place::kInside ||
      !(snapshot->forced || layout::Wants(state.every, snapshot->replay))) {
    ++state.skipped;
    return;
  }
  recording::Snapshot to = ToRecording(*snapshot, comparison);
  to.slot = state.id;
  to.skipped = std::exchange(state.skipped, 0);
  to.stats_only = payload == nullptr;
  Note(
      writer_->Append(std::move(to), payload ? std::span(*payload) : std::span<const std::byte>()));
  if (payload == nullptr && snapshot->on_device) {
    LoseReplays(snapshot->slot, LossCause::kValuesGone, 1, snapshot->replay, snapshot->replay);
  }
  end_.NoteAppend();
  // In a body more iterations of the last replay may come.
  state.has_last =
      request().replays != 0 && snapshot->replay - state.first_replay + 1 >= request().replays;
  state.done = state.has_last && !state.in_body;
}

void ActiveRecording::Lose(const Gap& gap) {
  const auto found = slots_.find(gap.slot);
  if (found == slots_.end() || found->second.done) return;
  // Before the first wanted one it is unknown whether they would have been wanted.
  if (request().align >= 2 && found->second.first_replay == 0) {
    found->second.next_ordinal = gap.last_ordinal + 1;
    return;
  }
  Account(&found->second, {.last_ordinal = gap.last_ordinal,
                           .last_replay = gap.last_replay,
                           .before_replay = gap.before_replay,
                           .cause = gap.cause,
                           .before_forced = gap.before_forced});
}

void ActiveRecording::LoseReplays(const SlotPtr& slot, LossCause cause, std::uint64_t count,
                                  std::uint64_t first_replay, std::uint64_t last_replay) {
  const auto found = slots_.find(slot);
  if (found == slots_.end() || count == 0) return;
  recording::Loss loss;
  loss.slot = found->second.id;
  loss.cause = cause;
  loss.count = count;
  loss.after_replay = first_replay - 1;
  loss.before_replay = last_replay + 1;
  loss.timestamp_ns = RealtimeNs();
  Note(writer_->AddLoss(loss));
}

void ActiveRecording::Close(const SlotPtr& slot, std::uint64_t last_replay,
                            std::uint64_t suppressed) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  SlotProgress& state = found->second;
  if (!end_.has_begun()) state.suppressed = std::max(state.suppressed, suppressed);
  if (suppressed != 0 && !state.done && !end_.has_begun())
    LoseKeptBack(slot, SlotProgress(state), last_replay, 0);
  EndSlot(slot, state, last_replay);
  slots_.erase(found);
}

void ActiveRecording::EndSlot(const SlotPtr& slot, const SlotProgress& state,
                              std::uint64_t last_replay) {
  // Which replays these were nobody knows any more.
  if (request().align < 2 && request().replays == 0 && state.suppressed > state.kept_back) {
    LoseReplays(slot, LossCause::kStoodStill, state.suppressed - state.kept_back,
                state.from_replay + 1, std::max(state.last_replay, state.from_replay + 1));
  }
  recording::Mark mark;
  mark.kind = recording::MarkKind::kSlotClosed;
  mark.session = sessions_.IdOf(slot->session);
  mark.slot = state.id;
  mark.replay = last_replay;
  mark.ordinal = state.next_ordinal - 1;
  mark.skipped = state.skipped;
  AddMark(std::move(mark));
}

void ActiveRecording::Found(const Finding& finding) {
  const auto found = slots_.find(finding.slot);
  if (found == slots_.end() || finding.replay <= found->second.from_replay) return;
  recording::Mark mark = ToRecording(finding);
  mark.session = sessions_.IdOf(finding.slot->session);
  mark.slot = found->second.id;
  Note(writer_->AddMark(mark));
}

void ActiveRecording::EndAt(const std::vector<RingHead>& heads) {
  if (!end_.Begin()) return;
  std::map<SlotPtr, const RingHead*> last;
  for (const RingHead& head : heads) last[head.slot] = &head;
  for (auto& [slot, state] : slots_) {
    const auto head = last.find(slot);
    const std::uint64_t seen = state.next_ordinal - 1;
    state.until = head == last.end() ? seen : std::max(head->second->ordinal, seen);
    if (head != last.end()) state.suppressed = std::max(state.suppressed, head->second->suppressed);
  }
}

void ActiveRecording::CloseSlots() {
  for (auto& [slot, state] : slots_) {
    if (end_.has_begun() && !state.done) {
      // Their replays are not known, so each of them may have been wanted.
      Account(&state,
              {.last_ordinal = state.until, .cause = LossCause::kUnread, .before_forced = true});
    }
    EndSlot(slot, state, state.last_replay);
  }
  slots_.clear();
}

void ActiveRecording::NotSeen(const SessionPtr& session, const layout::NotSeen& told) {
  if (!selection_.Wants(*session)) return;
  const layout::NotSeen not_seen = sessions_.SinceBegin(session, told);
  if (not_seen.count == 0) return;
  const auto id = sessions_.Add(session);
  if (!id) return;
  recording::Mark mark;
  mark.kind = recording::MarkKind::kNotSeen;
  mark.session = *id;
  mark.not_seen = not_seen;
  AddMark(std::move(mark));
}

void ActiveRecording::EndSession(const SessionPtr& session, bool died) {
  if (!sessions_.End(session)) return;
  std::erase_if(slots_, [&](const auto& slot) { return slot.first->session == session; });
  recording::Mark mark;
  mark.kind = died ? recording::MarkKind::kSessionDied : recording::MarkKind::kSessionEnded;
  mark.session = sessions_.IdOf(session);
  AddMark(std::move(mark));
}

void ActiveRecording::AddMark(recording::Mark mark) {
  mark.timestamp_ns = RealtimeNs();
  Note(writer_->AddMark(mark));
}

// Reports once that a recording stopped by itself; its status keeps the reason.
void ActiveRecording::Note(const Result<void>& written) {
  if (written.ok() || std::exchange(said_stopped_, true)) return;
  Log("sinks")->error("{}", written.error().message);
}

StopReason ActiveRecording::Over() const {
  const StopReason stopped = writer_->status().stopped;
  return stopped != StopReason::kNone ? stopped : end_.Reason(sessions_, slots_);
}

}  // namespace cgdebug::pipeline
