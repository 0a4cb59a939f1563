#include "daemon/record/active_recording.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "daemon/core/base/realtime.h"
#include "daemon/log/log.h"
#include "daemon/record/to_recording.h"
#include "libprobe/ring/segment/process_origin.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::pipeline {
namespace {

using layout::LossCause;
using recording::StopReason;

// If every probe has its replays, and nothing came for this long, no other probe is in the middle
// of one.
constexpr auto kQuiet = std::chrono::milliseconds(300);

// The greatest period that divides those of all actions; 0 without one.
std::uint32_t CommonPeriod(const layout::SlotFacts& r) {
  return std::gcd(std::gcd(r.print_every, r.record_every),
                  std::gcd(r.compare_every, r.stats_every));
}

// The period of the replays that `slot` writes by itself, 0 if it cannot be told from the replays
// of its snapshots: actions with several periods, bodies, comparisons that send nothing if they
// pass.
std::uint32_t PeriodOf(const SlotIdentity& slot) {
  const layout::SlotFacts& r = slot.registration;
  if (slot.IsInBody() || IsOfOpLog(slot) || (r.flags & layout::kSlotComparesOnDevice) != 0) {
    return 0;
  }
  const std::uint32_t periods[] = {r.print_every, r.record_every, r.compare_every, r.stats_every};
  const std::uint32_t common = CommonPeriod(r);
  return std::ranges::find(periods, common) == std::end(periods) ? 0 : common;
}

}  // namespace

ActiveRecording::ActiveRecording(std::uint64_t id, RecordRequest request, Selector selector,
                                 std::unique_ptr<recording::RecordingWriter> writer)
    : id_(id),
      request_(std::move(request)),
      selector_(std::move(selector)),
      started_ns_(RealtimeNs()),
      owner_ticks_(request_.owner == 0 ? 0 : ring::StartTicks(request_.owner)),
      writer_(std::move(writer)) {}

Result<std::unique_ptr<ActiveRecording>> ActiveRecording::Start(std::uint64_t id,
                                                                RecordRequest request,
                                                                recording::WriterOptions options) {
  auto selector = Selector::Parse(request.probes);
  if (!selector.ok()) return selector.error();
  if (request.roll_bytes != 0) options.roll_bytes = request.roll_bytes;
  if (request.min_free_bytes) {
    options.min_free_bytes = *request.min_free_bytes;
    options.min_free_percent = 0;
  }
  options.gather = true;  // Flush() comes before the credit
  options.only_unfinished = !request.to_disk_only;
  options.durability = request.durability.value_or(options.durability);
  if (options.max_bytes == 0 || (request.max_bytes != 0 && request.max_bytes < options.max_bytes)) {
    options.max_bytes = request.max_bytes;
  }
  auto writer = recording::RecordingWriter::Open(request.directory, options);
  if (!writer.ok()) return writer.error();
  return std::unique_ptr<ActiveRecording>(
      new ActiveRecording(id, std::move(request), *std::move(selector), *std::move(writer)));
}

RecordingInfo ActiveRecording::info() const {
  RecordingInfo info;
  info.id = id_;
  info.directory = request_.directory;
  info.probes = request_.probes;
  info.sessions = labels_;
  info.started_ns = started_ns_;
  info.slot_count = slot_count_;
  static_cast<recording::WriterStatus&>(info) = writer_->status();
  info.state = recording::ToText(info.stopped);
  info.active = info.stopped == StopReason::kNone;
  return info;
}

bool ActiveRecording::Wants(const SessionIdentity& session) const {
  if (!request_.sessions.empty() && !request_.sessions.contains(session.uuid)) return false;
  if (!request_.run_id.empty() && session.run_id != request_.run_id) return false;
  return !request_.rank || session.rank == *request_.rank;
}

bool ActiveRecording::Wants(const SlotIdentity& slot) const {
  if (request_.to_disk_only && !slot.Has(layout::kActionRecordToDisk)) return false;
  if (!Wants(*slot.session)) return false;
  // A recording of some rows must not hide what the log does not show.
  if (layout::IsNoRow(slot.op)) return true;
  if (!selector_.Matches(slot.probe)) return false;
  const std::uint64_t graph_id = slot.registration.graph_id;
  const bool is_named = request_.graphs.contains({slot.session->uuid, graph_id});
  return request_.which.Matches(graph_id, is_named ? request_.which.graph : slot.graph_label,
                                slot.shape);
}

std::optional<std::uint32_t> ActiveRecording::SessionId(const SessionPtr& session) {
  if (const auto known = sessions_.find(session); known != sessions_.end()) return known->second;
  const auto added = writer_->AddSession(*session);
  if (!added.ok()) return std::nullopt;
  sessions_.emplace(session, *added);
  alive_.insert(session);
  labels_.push_back(session->label);
  return *added;
}

bool ActiveRecording::NeedsAll(const SlotIdentity& slot) const {
  if (request_.to_disk_only || request_.lossless == LosslessJobs::kNone || !Wants(slot)) {
    return false;
  }
  return request_.lossless == LosslessJobs::kEvery || slot.session->created_ns >= started_ns_;
}

bool ActiveRecording::AwaitsJobs() const {
  return !request_.to_disk_only && request_.lossless != LosslessJobs::kNone &&
         request_.sessions.empty() && request_.run_id.empty();
}

// Replays 1, 1 + this, ... are all that the slot's actions write.
std::uint32_t ActiveRecording::EveryOf(const SlotIdentity& slot) const {
  const layout::SlotFacts& r = slot.registration;
  if (request_.to_disk_only) return std::max(r.record_every, 1u);
  if (NeedsAll(slot)) return 1;
  return std::max(CommonPeriod(r), 1u);
}

void ActiveRecording::Open(const SlotPtr& slot, std::uint64_t seen, std::uint64_t seen_replay,
                           std::uint64_t suppressed) {
  if (ending_ || slots_.contains(slot)) return;
  const auto session = SessionId(slot->session);
  if (!session) return;
  recording::Slot to = ToRecording(*slot);
  to.session = *session;
  State state;
  state.in_body = slot->IsInBody();
  state.every = EveryOf(*slot);
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

ActiveRecording::Place ActiveRecording::PlaceOf(State* state, std::uint64_t replay) const {
  if (state->first_replay == 0) {
    const bool aligned = request_.align < 2 || replay % request_.align == 0;
    if (!aligned) return Place::kBefore;
    state->first_replay = replay;
  }
  const bool after = request_.replays != 0 && replay - state->first_replay >= request_.replays;
  return after ? Place::kAfter : Place::kInside;
}

// Accounts for ordinals that never came here: the recording has lost those that were wanted.
// Between snapshots that the live control asked for, all count as wanted.
void ActiveRecording::Account(State* state, const Missing& all_missing) {
  Missing missing = all_missing;
  missing.last_ordinal = std::min(missing.last_ordinal, state->until);
  if (missing.last_ordinal < state->next_ordinal) return;
  const std::uint64_t ordinals = missing.last_ordinal - state->next_ordinal + 1;
  std::uint64_t wanted = ordinals;
  if (state->every > 1 && !state->in_body && !state->last_forced && !missing.before_forced) {
    const std::uint64_t up_to = std::max(missing.last_replay, state->last_replay);
    wanted = std::min(ordinals, layout::WantedUpTo(state->every, up_to) -
                                    layout::WantedUpTo(state->every, state->last_replay));
  }
  recording::Loss loss;
  loss.slot = state->id;
  loss.cause = missing.cause;
  loss.count = wanted;
  loss.first_ordinal = state->next_ordinal;
  loss.last_ordinal = missing.last_ordinal;
  const std::uint64_t out = state->in_body ? 1 : 0;  // see recording::Loss
  loss.after_replay = state->last_replay - std::min(state->last_replay, out);
  loss.before_replay = missing.before_replay == 0 ? 0 : missing.before_replay + out;
  loss.timestamp_ns = RealtimeNs();
  state->next_ordinal = missing.last_ordinal + 1;
  state->last_replay = std::max(state->last_replay, missing.last_replay);
  if (wanted == 0) {
    state->skipped += ordinals;
    return;
  }
  Note(writer_->AddLoss(loss));
}

void ActiveRecording::LoseKeptBack(const SlotPtr& slot, const State& before,
                                   std::uint64_t last_replay, std::uint64_t lost) {
  // A snapshot that the live control asked for tells nothing of the replays beside it.
  if (before.period == 0 || before.last_forced || last_replay <= before.last_replay) return;
  const std::uint64_t wanted = layout::WantedUpTo(before.period, last_replay) -
                               layout::WantedUpTo(before.period, before.last_replay);
  if (wanted <= lost) return;
  LoseReplays(slot, LossCause::kStoodStill, wanted - lost, before.last_replay + 1, last_replay);
  slots_.at(slot).kept_back += wanted - lost;
}

// Which replays these were nobody knows any more.
void ActiveRecording::LoseRestKeptBack(const SlotPtr& slot, const State& state) {
  if (request_.align >= 2 || request_.replays != 0 || state.suppressed <= state.kept_back) return;
  LoseReplays(slot, LossCause::kStoodStill, state.suppressed - state.kept_back,
              state.from_replay + 1, std::max(state.last_replay, state.from_replay + 1));
}

void ActiveRecording::Consume(const StoredSnapshot& stored, const ComparisonPtr& comparison,
                              std::uint64_t suppressed) {
  const auto& [snapshot, payload] = stored;
  const auto found = slots_.find(snapshot->slot);
  if (found == slots_.end()) return;
  State& state = found->second;
  state.suppressed = std::max(state.suppressed, suppressed);
  if (state.done || snapshot->ordinal < state.next_ordinal) {
    beyond_ = beyond_ || state.done;
    return;
  }
  const Place place = PlaceOf(&state, snapshot->replay);
  if (place == Place::kInside) {
    State before = state;
    if (request_.align >= 2) before.last_replay = std::max(before.last_replay, state.first_replay);
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
  beyond_ = beyond_ || state.done;
  if (place != Place::kInside ||
      !(snapshot->forced || layout::Wants(state.every, snapshot->replay))) {
    ++state.skipped;
    return;
  }
  recording::Snapshot to = ToRecording(*snapshot);
  to.slot = state.id;
  to.skipped = std::exchange(state.skipped, 0);
  to.stats_only = payload == nullptr;
  if (comparison != nullptr && comparison->ok()) {
    const numerics::CompareResult& compared = **comparison;
    to.compared = true;
    to.comparison = {compared.mismatched, compared.max_abs.value, compared.max_rel.value};
  }
  Note(
      writer_->Append(std::move(to), payload ? std::span(*payload) : std::span<const std::byte>()));
  if (payload == nullptr && snapshot->on_device) {
    LoseValues(snapshot->slot, 1, snapshot->replay, snapshot->replay);
  }
  last_append_ = Clock::now();
  // In a body more iterations of the last replay may come.
  state.has_last =
      request_.replays != 0 && snapshot->replay - state.first_replay + 1 >= request_.replays;
  state.done = state.has_last && !state.in_body;
}

void ActiveRecording::Lose(const Gap& gap) {
  const auto found = slots_.find(gap.slot);
  if (found == slots_.end() || found->second.done) return;
  // Before the first wanted one it is unknown whether they would have been wanted.
  if (request_.align >= 2 && found->second.first_replay == 0) {
    found->second.next_ordinal = gap.last_ordinal + 1;
    return;
  }
  Account(&found->second, {.last_ordinal = gap.last_ordinal,
                           .last_replay = gap.last_replay,
                           .before_replay = gap.before_replay,
                           .cause = gap.cause,
                           .before_forced = gap.before_forced});
}

void ActiveRecording::LoseValues(const SlotPtr& slot, std::uint64_t count,
                                 std::uint64_t first_replay, std::uint64_t last_replay) {
  LoseReplays(slot, LossCause::kValuesGone, count, first_replay, last_replay);
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
  State& state = found->second;
  if (!ending_) state.suppressed = std::max(state.suppressed, suppressed);
  if (suppressed != 0 && !state.done && !ending_) LoseKeptBack(slot, State(state), last_replay, 0);
  LoseRestKeptBack(slot, state);
  MarkClosed(slot, found->second, last_replay);
  slots_.erase(found);
}

void ActiveRecording::MarkClosed(const SlotPtr& slot, const State& state,
                                 std::uint64_t last_replay) {
  recording::Mark mark;
  mark.kind = recording::MarkKind::kSlotClosed;
  mark.session = sessions_[slot->session];
  mark.slot = state.id;
  mark.replay = last_replay;
  mark.ordinal = state.next_ordinal - 1;
  mark.skipped = state.skipped;
  mark.timestamp_ns = RealtimeNs();
  Note(writer_->AddMark(mark));
}

void ActiveRecording::Found(const Finding& finding) {
  const auto found = slots_.find(finding.slot);
  if (found == slots_.end() || finding.replay <= found->second.from_replay) return;
  recording::Mark mark;
  mark.kind = ToRecording(finding.kind);
  mark.session = sessions_[finding.slot->session];
  mark.slot = found->second.id;
  mark.replay = finding.replay;
  mark.serial = finding.serial;
  mark.step = finding.step;
  mark.count = finding.count;
  mark.text = finding.text;
  mark.timestamp_ns = finding.timestamp_ns;
  Note(writer_->AddMark(mark));
}

void ActiveRecording::EndAt(const std::vector<RingHead>& heads) {
  if (ending_) return;
  is_late_ = IsLate();
  ending_ = true;
  std::map<SlotPtr, const RingHead*> last;
  for (const RingHead& head : heads) last[head.slot] = &head;
  for (auto& [slot, state] : slots_) {
    const auto head = last.find(slot);
    const std::uint64_t seen = state.next_ordinal - 1;
    state.until = head == last.end() ? seen : std::max(head->second->ordinal, seen);
    if (head != last.end()) {
      state.suppressed = std::max(state.suppressed, head->second->suppressed);
    }
  }
}

void ActiveRecording::CloseSlots() {
  for (auto& [slot, state] : slots_) {
    if (ending_ && !state.done) {
      // Their replays are not known, so each of them may have been wanted.
      Account(&state,
              {.last_ordinal = state.until, .cause = LossCause::kUnread, .before_forced = true});
    }
    LoseRestKeptBack(slot, state);
    MarkClosed(slot, state, state.last_replay);
  }
  slots_.clear();
}

// Whatever the selection is: which probes it is about is known of the first one alone.
void ActiveRecording::BeginNotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) {
  layout::NotSeen::Gone& before = not_seen_before_[{session, not_seen.kind}];
  before = not_seen.gone;
  if (not_seen.kind == layout::NotSeenKind::kGivenUp) before.count = not_seen.count;
  NotSeen(session, not_seen);
}

void ActiveRecording::NotSeen(const SessionPtr& session, const layout::NotSeen& told) {
  if (!Wants(*session)) return;
  const auto before = not_seen_before_.find({session, told.kind});
  const layout::NotSeen not_seen =
      told.Without(before == not_seen_before_.end() ? layout::NotSeen::Gone{} : before->second);
  if (not_seen.count == 0) return;
  const auto id = SessionId(session);
  if (!id) return;
  recording::Mark mark;
  mark.kind = recording::MarkKind::kNotSeen;
  mark.session = *id;
  mark.not_seen = not_seen;
  mark.timestamp_ns = RealtimeNs();
  Note(writer_->AddMark(mark));
}

void ActiveRecording::EndSession(const SessionPtr& session, bool died) {
  if (alive_.erase(session) == 0) return;
  std::erase_if(slots_, [&](const auto& slot) { return slot.first->session == session; });
  recording::Mark mark;
  mark.kind = died ? recording::MarkKind::kSessionDied : recording::MarkKind::kSessionEnded;
  mark.session = sessions_[session];
  mark.timestamp_ns = RealtimeNs();
  Note(writer_->AddMark(mark));
}

// Reports once that a recording stopped by itself; its status keeps the reason.
void ActiveRecording::Note(const Result<void>& written) {
  if (written.ok() || std::exchange(said_stopped_, true)) return;
  Log("sinks")->error("{}", written.error().message);
}

bool ActiveRecording::IsLate() const {
  return !ending_ && request_.duration.count() != 0 && Clock::now() - started_ >= request_.duration;
}

StopReason ActiveRecording::Over() const {
  const StopReason stopped = writer_->status().stopped;
  if (stopped != StopReason::kNone) return stopped;
  const bool is_owned = owner_ticks_ != 0 && ring::StartTicks(request_.owner) == owner_ticks_;
  if (!sessions_.empty() && alive_.empty() && !is_owned) return StopReason::kJobEnded;
  // If a client stops the recording, the client gives the reason.
  if (ending_) return is_late_ ? StopReason::kReached : StopReason::kNone;
  if (request_.replays == 0) return StopReason::kNone;
  bool any = false;
  for (const auto& [slot, state] : slots_) {
    any = any || state.done || state.has_last;
    // Waits for slots that have begun, not for slots that were never replayed, nor for conditional
    // bodies, which need not run again.
    if (state.first_replay != 0 && !state.done && !state.in_body) return StopReason::kNone;
  }
  const bool quiet = Clock::now() - last_append_ >= kQuiet;
  return any && (beyond_ || quiet) ? StopReason::kReached : StopReason::kNone;
}

}  // namespace cgdebug::pipeline
