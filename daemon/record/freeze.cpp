#include "daemon/record/freeze.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "daemon/core/recording/catalogue.h"
#include "daemon/log.h"
#include "daemon/pipeline/snapshot_maker.h"

namespace cgdebug::pipeline {

using layout::LossCause;

namespace {

// Read from a ring at a time: meanwhile the ingest thread does nothing else.
constexpr std::size_t kBatchBytes = 16u << 20;

// What is left of one slot, in the order of its ordinals.
class Remains {
 public:
  Remains(SlotPtr slot, const SnapshotStore& store, RingReads* rings)
      : slot_(std::move(slot)), rings_(rings) {
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
    RingContent content = rings_->Read({slot_, ordinal, last, kBatchBytes});
    ring_.readable = content.readable;
    batch_ = std::move(content.entries);
    unreadable_.merge(content.unreadable);
    read_up_to_ = content.next;
  }

  SlotPtr slot_;
  RingReads* rings_;
  std::map<std::uint64_t, StoredSnapshot> kept_;
  RingContent ring_;
  std::vector<ring::Entry> batch_;
  std::uint64_t read_up_to_ = 0;  // ordinal; those before were asked for
  std::map<std::uint64_t, LossCause> unreadable_;
  PayloadPool pool_{0};
  SnapshotMaker maker_{&pool_};
  PayloadPtr previous_payload_;  // for the maker to compare the next one with
};

void FreezeSlot(ActiveRecording* recording, const SlotRecord& record, std::uint64_t count,
                const SnapshotStore& store, RingReads* rings) {
  const SlotPtr& slot = record.slot;
  Remains remains(slot, store, rings);
  const std::uint64_t last = remains.last();
  const std::uint64_t produced = std::max(last, record.counters.produced);
  const std::uint64_t first = count != 0 && produced >= count ? produced - count + 1 : 1;
  recording->Open(slot, first - 1);
  std::uint64_t told = first - 1;  // the ordinal up to which everything is written down
  std::uint64_t replay = 0;        // of the last one that was there
  const auto lose_up_to = [&](std::uint64_t ordinal, LossCause cause, std::uint64_t before) {
    if (ordinal <= told) return;
    told = ordinal;
    recording->Lose({.slot = slot,
                     .cause = cause,
                     .last_ordinal = ordinal,
                     .last_replay = before == 0        ? replay
                                    : slot->IsInBody() ? before
                                                       : before - 1,
                     .before_replay = before});
  };
  // How many of the missing snapshots were never read. It is not known which ones, so the oldest
  // are taken for them.
  std::uint64_t never_read = produced - std::min(produced, record.counters.consumed);
  const auto miss_up_to = [&](std::uint64_t ordinal, std::uint64_t before) {
    if (ordinal <= told) return;
    const std::uint64_t overwritten = std::min(never_read, ordinal - told);
    never_read -= overwritten;
    lose_up_to(told + overwritten, LossCause::kOverwritten, before);
    lose_up_to(ordinal, LossCause::kNotKept, before);
  };
  std::vector<std::uint64_t> without_values;  // replays
  for (auto ordinal = remains.Next(first); ordinal != 0; ordinal = remains.Next(ordinal + 1)) {
    const auto stored = remains.Take(ordinal);
    if (stored) {
      replay = stored->snapshot->replay;
      miss_up_to(ordinal - 1, replay);
      told = ordinal;
      recording->Consume(*stored);
      if (!Remains::IsWhole(*stored)) without_values.push_back(replay);
    } else if (const auto cause = remains.WhyNot(ordinal)) {
      miss_up_to(ordinal - 1, 0);
      lose_up_to(ordinal, *cause, 0);
    }
  }
  miss_up_to(produced, 0);
  if (record.counters.lost_at_death != 0) lose_up_to(produced + 1, LossCause::kAtDeath, 0);
  if (!without_values.empty()) {
    recording->LoseValues(slot, without_values.size(), without_values.front(),
                          without_values.back());
  }
  for (const Finding& finding : FindingsOf(record)) recording->Found(finding);
}

}  // namespace

Result<RecordingInfo> Freeze(const FreezeRequest& request, const recording::WriterOptions& options,
                             const SnapshotStore& store, RingReads* rings) {
  RecordRequest record;
  record.directory = request.directory;
  record.probes = request.probes;
  auto recording = ActiveRecording::Start(0, std::move(record), options);
  if (!recording.ok()) return recording.error();
  for (const SlotRecord& slot : request.slots) {
    if (!(*recording)->Wants(*slot.slot)) continue;
    FreezeSlot(recording->get(), slot, request.last, store, rings);
  }
  (*recording)->CloseSlots();
  const Result<void> closed = (*recording)->writer().Close(recording::StopReason::kRequested);
  const auto indexed = recording::UpdateCatalogue(request.directory);
  if (!indexed.ok()) Log("serve")->warn("{}", indexed.error().message);
  RecordingInfo info = (*recording)->info();
  info.active = false;
  if (!closed.ok()) return closed.error();
  if (!info.error.empty()) return Error{info.error};
  return info;
}

}  // namespace cgdebug::pipeline
