#include "daemon/record/freeze/freeze.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/catalogue/catalogue.h"
#include "daemon/log/log.h"
#include "daemon/pipeline/snapshot_maker.h"
#include "proto/layout/recording_layout.h"
#include "proto/layout/slot_control.h"

namespace cgdebug::pipeline {

using layout::LossCause;

namespace {

// Read from a ring at a time: meanwhile the ingest thread does nothing else.
constexpr std::size_t kBatchBytes = 16u << 20;

// What a recording takes beside the values, generously.
constexpr std::uint64_t kRecordingBytes = 32u << 10;
constexpr std::uint64_t kSlotBytes = 4u << 10;
constexpr std::uint64_t kSnapshotBytes = 512;

// A job that does not replay sends no values.
constexpr auto kDevicePatience = std::chrono::seconds(5);

// What is left of one slot, in the order of its ordinals.
class Remains {
 public:
  // `patience`: how long to wait for a value on the device; 0 after the first timeout.
  Remains(SlotPtr slot, const SnapshotStore& store, RingReads* rings,
          std::chrono::nanoseconds* patience)
      : slot_(std::move(slot)), rings_(rings), patience_(patience) {
    for (StoredSnapshot& stored : store.History(slot_)) {
      const std::uint64_t ordinal = stored.snapshot->ordinal;
      kept_.emplace(ordinal, std::move(stored));
    }
    ring_ = rings_->Read({slot_, 1, 0, 0});
  }

  // The first ordinal from this one on that memory or the ring may have; 0: none.
  std::uint64_t Next(std::uint64_t ordinal) const {
    const auto kept = kept_.lower_bound(ordinal);
    const std::uint64_t in_memory = kept == kept_.end() ? 0 : kept->first;
    const std::uint64_t in_ring = std::max(ordinal, ring_.oldest);
    if (!ring_.readable || in_ring > ring_.newest) return in_memory;
    return in_memory == 0 ? in_ring : std::min(in_memory, in_ring);
  }
  std::uint64_t last() const {
    const std::uint64_t kept = kept_.empty() ? 0 : kept_.rbegin()->first;
    return ring_.readable ? std::max(kept, ring_.newest) : kept;
  }
  // Why it cannot be read, although it is there.
  std::optional<LossCause> WhyNot(std::uint64_t ordinal) const {
    const auto found = unreadable_.find(ordinal);
    return found == unreadable_.end() ? std::nullopt : std::optional(found->second);
  }

  // Absent if neither has it; without values if only these are gone.
  std::optional<StoredSnapshot> Take(std::uint64_t ordinal) {
    const auto kept = kept_.find(ordinal);
    if (kept == kept_.end() || !IsWhole(kept->second)) {
      if (std::optional<StoredSnapshot> read = FromRing(ordinal)) {
        previous_payload_ = read->payload;
        return read;
      }
      if (kept == kept_.end()) return std::nullopt;
    }
    maker_.Follow(kept->second);
    return kept->second;
  }

  static bool IsWhole(const StoredSnapshot& stored) {
    return stored.payload != nullptr || !stored.snapshot->has_values;
  }

 private:
  std::optional<StoredSnapshot> FromRing(std::uint64_t ordinal) {
    if (!ring_.readable || ordinal > ring_.newest) return std::nullopt;
    if (ordinal >= read_up_to_) ReadBatch(ordinal);
    const auto entry = std::ranges::find(batch_, ordinal, &ring::Entry::ordinal);
    if (entry == batch_.end()) return std::nullopt;
    // Whatever was wanted of it: the values are there.
    entry->flags &= ~layout::kEntryDropValues;
    return maker_.Make(slot_, &*entry, {});
  }

  // Stops before the first entry that memory has with its values.
  void ReadBatch(std::uint64_t ordinal) {
    std::uint64_t last = ring_.newest;
    for (auto kept = kept_.lower_bound(ordinal); kept != kept_.end(); ++kept) {
      if (!IsWhole(kept->second)) continue;
      last = std::min(last, kept->first - 1);
      break;
    }
    RingContent content = rings_->Read({.slot = slot_,
                                        .first_ordinal = ordinal,
                                        .last_ordinal = last,
                                        .max_bytes = kBatchBytes,
                                        .patience = *patience_});
    if (content.timed_out) *patience_ = {};
    ring_.readable = content.readable;
    batch_ = std::move(content.entries);
    unreadable_.merge(content.unreadable);
    read_up_to_ = content.next;
  }

  SlotPtr slot_;
  RingReads* rings_;
  std::chrono::nanoseconds* patience_;
  std::map<std::uint64_t, StoredSnapshot> kept_;
  RingContent ring_;
  std::vector<ring::Entry> batch_;
  std::uint64_t read_up_to_ = 0;  // ordinal; those before were asked for
  std::map<std::uint64_t, LossCause> unreadable_;
  PayloadPool pool_{0};
  SnapshotMaker maker_{&pool_};
  PayloadPtr previous_payload_;  // for the maker to compare the next one with
};

// How many of the newest replays of each slot have room in the recording.
struct Room {
  std::uint64_t replays = ~std::uint64_t{0};
  LossCause cause = LossCause::kLimit;
  std::string why;
};

// How many snapshots there may be of one slot. `asked`: the newest ones alone; 0 = all.
std::uint64_t MostOf(const SlotRecord& slot, std::uint64_t asked, const SnapshotStore& store) {
  const layout::SlotFacts& r = slot.slot->registration;
  const std::uint64_t kept =
      slot.slot->IsOnDevice() ? r.device_capacity : r.capacity + store.History(slot.slot).size();
  return asked == 0 ? kept : std::min(kept, asked);
}

// 0 = no limit.
std::uint64_t LesserLimit(std::uint64_t a, std::uint64_t b) {
  return a == 0 || b == 0 ? a + b : std::min(a, b);
}

// A recording sets space aside ahead of what it writes: at most as much again, and no more than
// this.
constexpr std::uint64_t kMostAhead = 257u << 20;
std::uint64_t UsableOf(std::uint64_t on_disk) {
  return std::max(on_disk / 2, on_disk - std::min(on_disk, kMostAhead));
}

struct Share {
  std::uint64_t snapshots;  // at most
  std::uint64_t bytes;      // of one
};

Share ShareOf(const SlotRecord& slot, std::uint64_t snapshots) {
  const std::uint64_t values = slot.slot->registration.payload_bytes;
  const bool begins_at_page = values >= layout::kLargePayloadBytes;
  return {snapshots, values + (begins_at_page ? layout::kLargePayloadAlignment : 0)};
}

Room FindRoom(const std::vector<Share>& shares, std::uint64_t max_bytes, std::uint64_t on_disk) {
  Room room;
  std::uint64_t most = max_bytes == 0 ? on_disk : max_bytes;
  room.why = fmt::format("a recording may take {}", numerics::FormatBytes(most));
  if (on_disk < most || max_bytes == 0) {
    most = on_disk;
    room.cause = LossCause::kDisk;
    room.why = fmt::format("its disk has room for {}", numerics::FormatBytes(most));
  }
  const auto has_room = [&](std::uint64_t replays) {
    std::uint64_t bytes = kRecordingBytes;
    for (const Share& share : shares) {
      bytes += kSlotBytes + std::min(share.snapshots, replays) * (share.bytes + kSnapshotBytes);
      if (bytes > most) return false;
    }
    return true;
  };
  std::uint64_t too_many = 0;
  for (const Share& share : shares) too_many = std::max(too_many, share.snapshots);
  if (has_room(too_many)) return {};
  std::uint64_t enough = 0;
  while (too_many - enough > 1) {
    const std::uint64_t middle = enough + (too_many - enough) / 2;
    (has_room(middle) ? enough : too_many) = middle;
  }
  room.replays = enough;
  return room;
}

// Writes what is left of one slot, one snapshot at a time.
class SlotFreeze {
 public:
  // `kept_back`: how many replays the live control has kept back; 0 if LoseLeftOut() counts them.
  SlotFreeze(ActiveRecording* recording, const SlotRecord& record, std::uint64_t count,
             std::uint64_t kept_back, const Room& room, const SnapshotStore& store,
             RingReads* rings, std::chrono::nanoseconds* patience)
      : recording_(recording),
        record_(record),
        kept_back_(kept_back),
        room_(room),
        rings_(rings),
        remains_(record.slot, store, rings, patience) {
    const std::uint64_t last = remains_.last();
    produced_ = std::max(last, record.counters.produced);
    const std::uint64_t first = count != 0 && produced_ >= count ? produced_ - count + 1 : 1;
    // How many of the missing snapshots were never read. It is not known which ones, so the oldest
    // are taken for them.
    never_read_ = produced_ - std::min(produced_, record.counters.consumed);
    recording_->Open(record.slot, first - 1);
    starts_at_first_ = first == 1;
    told_ = first - 1;
    next_ = remains_.Next(first);
    const std::uint64_t most = MostOf(record, count, store);
    if (most <= room.replays) return;
    const std::uint64_t whole = produced_ > room.replays ? produced_ - room.replays + 1 : 1;
    if (next_ == 0 || next_ >= whole) return;
    out_first_ = next_;
    out_last_ = whole - 1;
    next_ = remains_.Next(whole);
    // The device has overwritten older values, and their headers say nothing about them.
    if (record.slot->IsOnDevice() && !layout::MakesStatistics(record.slot->registration)) {
      out_first_ = std::max(out_first_, produced_ - std::min(produced_, most) + 1);
    }
  }

  std::uint64_t left_out() const { return out_first_ == 0 ? 0 : out_last_ - out_first_ + 1; }

  const SlotRecord& record() const { return record_; }
  // The replays that were written.
  std::set<std::uint64_t> Replays() const {
    std::set<std::uint64_t> replays;
    for (const auto& [ordinal, replay] : written_) replays.insert(replay);
    return replays;
  }

  // Writes down which replays of its graph the ring left out: those that the slot wanted, between
  // its own, without an ordinal. With `to_end` also those behind its last one. Returns how many the
  // job did not write.
  std::uint64_t LoseLeftOut(const std::set<std::uint64_t>& of_graph, bool to_end) {
    if (written_.empty() && produced_ != 0) return 0;  // all of its own are lost
    std::uint64_t left_out = 0;
    // Nothing of its own came before the first ordinal.
    Place before;
    if (!written_.empty() && written_.front().ordinal != 1) before = written_.front();
    for (const Place& next : written_) {
      // The job counts what a ring leaves out.
      if (record_.counters.suppressed != 0 && next.ordinal != before.ordinal) {
        left_out += LoseBetween(of_graph, before, next, LossCause::kStoodStill);
      }
      before = next;
    }
    if (!to_end || of_graph.empty()) return left_out;
    const Place end = {produced_ + 1, UINT64_MAX};
    if (record_.counters.replays >= *of_graph.rbegin()) {
      return left_out + LoseBetween(of_graph, before, end, LossCause::kStoodStill);
    }
    // The rest of that replay did not come in time.
    LoseBetween(of_graph, before, end, LossCause::kUnread);
    return left_out;
  }

  // Writes the next one. False: that was the last.
  bool Step() {
    if (next_ == 0) return false;
    const auto stored = remains_.Take(next_);
    if (stored) {
      replay_ = stored->snapshot->replay;
      LeaveOut(replay_);
      MissUpTo(next_ - 1, replay_);
      told_ = next_;
      written_.push_back({next_, replay_});
      // Of the newest ones alone, how many were kept back before the first is not known.
      const bool has_before = starts_at_first_ || written_.size() > 1;
      recording_->Consume(*stored, nullptr, has_before ? kept_back_ : 0);
      // The recording itself keeps account of values on the device.
      if (!Remains::IsWhole(*stored) && !stored->snapshot->on_device) {
        without_values_.push_back(replay_);
      }
    } else if (const auto cause = remains_.WhyNot(next_)) {
      MissUpTo(next_ - 1, 0);
      LoseUpTo(next_, *cause, 0);
    }
    next_ = remains_.Next(next_ + 1);
    AskAhead();
    return next_ != 0;
  }

  // Asks for the next value if it is on the device, so that it comes while others are written.
  void AskAhead() const {
    if (next_ == 0 || !record_.slot->IsOnDevice()) return;
    rings_->Read({.slot = record_.slot,
                  .first_ordinal = next_,
                  .last_ordinal = next_,
                  .max_bytes = 1,
                  .patience = std::chrono::nanoseconds(0)});
  }

  void Finish() {
    LeaveOut(0);
    MissUpTo(produced_, 0);
    if (record_.counters.lost_at_death != 0) LoseUpTo(produced_ + 1, LossCause::kAtDeath, 0);
    if (!without_values_.empty()) {
      recording_->LoseReplays(record_.slot, LossCause::kValuesGone, without_values_.size(),
                              without_values_.front(), without_values_.back());
    }
    for (const Finding& finding : FindingsOf(record_)) recording_->Found(finding);
  }

 private:
  struct Place {
    std::uint64_t ordinal = 0;
    std::uint64_t replay = 0;
  };

  std::uint64_t LoseBetween(const std::set<std::uint64_t>& of_graph, const Place& before,
                            const Place& next, LossCause cause) {
    std::uint64_t first = 0, last = 0, wanted = 0;
    for (auto one = of_graph.upper_bound(before.replay);
         one != of_graph.end() && *one < next.replay; ++one) {
      if (!WantsReplay(record_, *one)) continue;
      if (++wanted == 1) first = *one;
      last = *one;
    }
    // Those with an ordinal are lost already, wherever they lie.
    const std::uint64_t lost = next.ordinal - before.ordinal - 1;
    if (wanted <= lost) return 0;
    recording_->LoseReplays(record_.slot, cause, wanted - lost, first, last);
    return wanted - lost;
  }

  // Writes down the ones for which there is no room, and those before them that are gone.
  void LeaveOut(std::uint64_t before) {
    if (out_first_ == 0 || told_ >= out_last_) return;
    MissUpTo(out_first_ - 1, before);
    LoseUpTo(out_last_, room_.cause, before);
  }
  void LoseUpTo(std::uint64_t ordinal, LossCause cause, std::uint64_t before) {
    if (ordinal <= told_) return;
    told_ = ordinal;
    recording_->Lose({.slot = record_.slot,
                      .cause = cause,
                      .last_ordinal = ordinal,
                      .last_replay = before == 0                ? replay_
                                     : record_.slot->IsInBody() ? before
                                                                : before - 1,
                      .before_replay = before});
  }
  void MissUpTo(std::uint64_t ordinal, std::uint64_t before) {
    if (ordinal <= told_) return;
    const std::uint64_t overwritten = std::min(never_read_, ordinal - told_);
    never_read_ -= overwritten;
    LoseUpTo(told_ + overwritten, LossCause::kOverwritten, before);
    // What was read of a slot on the device were headers.
    const bool on_device = record_.slot->IsOnDevice();
    LoseUpTo(ordinal, on_device ? LossCause::kOnDevice : LossCause::kNotKept, before);
  }

  ActiveRecording* recording_;
  const SlotRecord& record_;
  const std::uint64_t kept_back_;
  const Room& room_;
  RingReads* rings_;
  Remains remains_;
  std::uint64_t produced_ = 0;
  std::uint64_t never_read_ = 0;
  bool starts_at_first_ = false;
  std::uint64_t told_ = 0;       // the ordinal up to which everything is written down
  std::uint64_t replay_ = 0;     // of the last one that was there
  std::uint64_t next_ = 0;       // ordinal; 0: none is left
  std::uint64_t out_first_ = 0;  // of those for which there is no room; 0: none
  std::uint64_t out_last_ = 0;
  std::vector<std::uint64_t> without_values_;  // replays
  std::vector<Place> written_;
};

// See Freeze().
void LoseLeftOut(std::deque<SlotFreeze>* freezes, const FreezeRequest& request, FrozenInfo* info) {
  const auto graph_of = [](const SlotFreeze& freeze) {
    const SlotIdentity& slot = *freeze.record().slot;
    return std::pair(slot.session->uuid, slot.registration.graph_id);
  };
  // A body need not run in each replay, and eager calls have none in common.
  const auto has_replays = [](const SlotFreeze& freeze) {
    const SlotIdentity& slot = *freeze.record().slot;
    return slot.registration.graph_id != 0 && !slot.IsInBody();
  };
  std::map<std::pair<std::string, std::uint64_t>, std::set<std::uint64_t>> of_graph;
  for (const SlotFreeze& freeze : *freezes) {
    if (has_replays(freeze)) of_graph[graph_of(freeze)].merge(freeze.Replays());
  }
  for (SlotFreeze& freeze : *freezes) {
    if (!has_replays(freeze)) continue;
    const SlotIdentity& slot = *freeze.record().slot;
    const auto device = static_cast<std::uint32_t>(slot.registration.device_index);
    const bool stands_still = !request.running.contains(device) && !freeze.record().retired;
    const std::uint64_t left_out = freeze.LoseLeftOut(of_graph[graph_of(freeze)], stands_still);
    if (left_out == 0) continue;
    info->stood_still += left_out;
    info->partial.insert(slot.probe);
  }
}

// What nobody saw of them, and how they ended.
void WriteSessions(const std::vector<SessionRecord>& sessions, ActiveRecording* recording) {
  for (const SessionRecord& session : sessions) {
    for (const layout::NotSeen& one : session.not_seen) {
      if (recording->selection().Wants(one)) recording->NotSeen(session.session, one);
    }
    if (session.state == SessionState::kAlive) continue;
    recording->EndSession(session.session, session.state == SessionState::kDied);
  }
}

}  // namespace

bool WantsReplay(const SlotRecord& slot, std::uint64_t replay) {
  layout::SlotControl control = slot.control;
  control.lossless = layout::Lossless::kAsRegistered;
  return layout::Decide(layout::PeriodsOf(slot.slot->registration), control, replay) !=
         layout::Outcome::kSkip;
}

Result<FrozenInfo> Freeze(const FreezeRequest& request, const recording::WriterOptions& options,
                          const SnapshotStore& store, RingReads* rings) {
  RecordRequest record;
  record.directory = request.directory;
  record.probes = request.probes;
  record.max_bytes = request.max_bytes;
  auto recording = ActiveRecording::Start(0, std::move(record), options);
  if (!recording.ok()) return recording.error();
  const auto asked_of = [&](const SlotRecord& slot) -> std::uint64_t {
    const bool is_ring = request.device_rings && slot.slot->IsOnDevice();
    return is_ring ? slot.slot->registration.device_capacity : request.last;
  };
  std::vector<Share> shares;
  for (const SlotRecord& slot : request.slots) {
    if (!(*recording)->selection().Wants(*slot.slot)) continue;
    shares.push_back(ShareOf(slot, MostOf(slot, asked_of(slot), store)));
  }
  const Room room = FindRoom(shares, LesserLimit(request.max_bytes, options.max_bytes),
                             UsableOf(recording::RoomOnDisk(request.directory, options)));
  FrozenInfo info;
  std::chrono::nanoseconds patience = kDevicePatience;
  std::deque<SlotFreeze> on_device;
  for (const SlotRecord& slot : request.slots) {
    if (!(*recording)->selection().Wants(*slot.slot)) continue;
    if (slot.slot->IsOnDevice()) {
      on_device.emplace_back(recording->get(), slot, asked_of(slot),
                             request.device_rings ? 0 : slot.counters.suppressed, room, store,
                             rings, &patience);
      info.left_out += on_device.back().left_out();
      on_device.back().AskAhead();
      continue;
    }
    SlotFreeze freeze(recording->get(), slot, request.last, slot.counters.suppressed, room, store,
                      rings, &patience);
    info.left_out += freeze.left_out();
    while (freeze.Step()) continue;
    freeze.Finish();
  }
  // In turn, because a value of each slot comes with every replay or two.
  for (bool any = true; any;) {
    any = false;
    for (SlotFreeze& freeze : on_device) any |= freeze.Step();
  }
  for (SlotFreeze& freeze : on_device) freeze.Finish();
  if (request.device_rings) LoseLeftOut(&on_device, request, &info);
  (*recording)->CloseSlots();
  WriteSessions(request.sessions, recording->get());
  const Result<void> closed = (*recording)->writer().Close(recording::StopReason::kRequested);
  const auto indexed = recording::UpdateCatalogue(request.directory);
  if (!indexed.ok()) Log("sinks")->warn("{}", indexed.error().message);
  static_cast<RecordingInfo&>(info) = (*recording)->info();
  if (info.left_out != 0) info.why = room.why;
  if (!closed.ok()) return closed.error();
  // The disk was filled by somebody else meanwhile, or failed.
  if (!info.error.empty()) {
    return Error{fmt::format("{} snapshots are in {}, and {} more could not be written: {}",
                             info.snapshots, request.directory, info.refused, info.error)};
  }
  return info;
}

}  // namespace cgdebug::pipeline
