#include "client/source/copy_recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>

#include "client/source/source.h"
#include "daemon/core/recording/recording_writer.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::source {
namespace {

using layout::LossCause;
using recording::Loss;
using recording::RecordingReader;
using recording::RecordingWriter;
using recording::SnapshotRef;
using recording::StopReason;

// A snapshot of one of the recordings, on its way to a slot of the copy.
struct Item {
  std::uint64_t ordinal;
  std::uint32_t slot;  // of the copy
  std::uint32_t reader;
  SnapshotRef ref;
};

// A slot of the copy: the same in every recording that has it.
struct Target {
  recording::Slot slot;
  std::string session_uuid;
  std::vector<Item> items = {};   // by ordinal, each once
  std::vector<Item> others = {};  // by ordinal: the same snapshots in another recording
  std::vector<Loss> losses = {};  // by ordinal, once it is settled
  // The ordinals that each recording covers: after the first, up to the second.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> stretches = {};
  std::size_t written_losses = 0;  // counted from the first
};

bool IsWhole(const RecordingReader& reader) {
  return reader.closed() && reader.damage().empty() && recording::HadAll(reader.stop_reason());
}

// A snapshot that several recordings lost counts as one loss. `losses`: by ordinal.
std::vector<Loss> EachOnce(const std::vector<Loss>& losses) {
  std::vector<Loss> once;
  std::uint64_t told = 0;
  for (Loss loss : losses) {
    if (loss.first_ordinal != 0 && loss.first_ordinal <= loss.last_ordinal) {
      if (loss.last_ordinal <= told) continue;
      if (loss.first_ordinal <= told) {
        loss.first_ordinal = told + 1;
        loss.count = std::min(loss.count, loss.last_ordinal - told);
      }
      told = loss.last_ordinal;
    }
    once.push_back(loss);
  }
  return once;
}

class Copier {
 public:
  Copier(const std::vector<const RecordingReader*>& from, const CopyOptions& options)
      : from_(from), options_(options) {}

  Result<CopyResult> Run(const std::string& to) {
    for (std::uint32_t reader = 0; reader < from_.size(); ++reader) Collect(reader);
    for (Target& target : targets_) Settle(&target);
    result_.slots = targets_.size();
    std::uint64_t snapshots = 0;
    for (const Target& target : targets_) snapshots += target.items.size();
    result_.is_nothing = targets_.empty() || (is_range() && snapshots == 0);
    if (options_.dry_run || result_.is_nothing) {
      result_.snapshots = snapshots;
      return result_;
    }
    std::error_code ignored;
    if (std::filesystem::exists(to, ignored)) {
      return Error{fmt::format("{} exists. To overwrite it, add: -f", to)};
    }
    Result<std::unique_ptr<RecordingWriter>> writer = RecordingWriter::Open(to, {.gather = true});
    if (!writer.ok()) return writer.error();
    writer_ = *std::move(writer);
    Result<void> done = AddTargets();
    if (done.ok()) done = CopyItems();
    if (done.ok()) done = CopyMarks();
    if (done.ok()) done = writer_->Close(EndReason());
    if (!done.ok()) return Error{fmt::format("cannot write {}: {}", to, done.error().message)};
    return result_;
  }

 private:
  bool Wants(const recording::Slot& slot, const RecordingReader& reader) const {
    if (slot.probe.empty() || slot.session >= reader.sessions().size()) return false;
    return !options_.wants || options_.wants(slot, reader.sessions()[slot.session]);
  }

  void Collect(std::uint32_t number) {
    const RecordingReader& reader = *from_[number];
    std::map<std::uint32_t, std::size_t> targets;  // by slot of the reader
    for (const recording::Slot& slot : reader.slots()) {
      if (!Wants(slot, reader)) continue;
      const std::string& uuid = reader.sessions()[slot.session].uuid;
      const auto [found, is_new] =
          target_of_.try_emplace({uuid, slot.index, slot.generation}, targets_.size());
      if (is_new) targets_.push_back({.slot = slot, .session_uuid = uuid});
      Target& target = targets_[found->second];
      target.slot.from_ordinal = std::min(target.slot.from_ordinal, slot.from_ordinal);
      target.slot.from_replay = std::min(target.slot.from_replay, slot.from_replay);
      target.stretches.emplace_back(slot.from_ordinal,
                                    slot.from_ordinal + reader.AccountOf(slot.id).produced);
      targets[slot.id] = found->second;
      for (const SnapshotRef& ref :
           reader.Snapshots(slot.id, options_.first_replay, options_.last_replay)) {
        target.items.push_back(
            {ref.ordinal, static_cast<std::uint32_t>(found->second), number, ref});
      }
    }
    for (const Loss& loss : reader.losses()) {
      const auto target = targets.find(loss.slot);
      if (target == targets.end() || !IsWanted(loss)) continue;
      targets_[target->second].losses.push_back(loss);
    }
  }

  // Keeps each ordinal once, keeps as losses only what no source has, and finds where the slot
  // begins.
  void Settle(Target* target) {
    std::vector<Item>& items = target->items;
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) { return a.ordinal < b.ordinal; });
    std::vector<Item> first_of_each;
    for (const Item& item : items) {
      const bool is_first = first_of_each.empty() || first_of_each.back().ordinal != item.ordinal;
      (is_first ? first_of_each : target->others).push_back(item);
    }
    items = std::move(first_of_each);
    AddHoles(target);
    std::vector<Loss> losses;
    for (const Loss& loss : target->losses) {
      AppendMissing(target->slot, loss, items, &losses);
    }
    std::ranges::stable_sort(losses, {}, &Loss::first_ordinal);
    target->losses = EachOnce(losses);
    std::uint64_t first = items.empty() ? 0 : items.front().ordinal;
    for (const Loss& loss : target->losses) {
      if (loss.first_ordinal > 0 && (first == 0 || loss.first_ordinal < first)) {
        first = loss.first_ordinal;
      }
    }
    if (options_.first_replay > 1 && first > 0) target->slot.from_ordinal = first - 1;
    for (const Loss& loss : target->losses) result_.lost += loss.count;
  }

  // Adds what the job produced between two recordings, while none was written.
  void AddHoles(Target* target) const {
    std::ranges::sort(target->stretches);
    std::uint64_t told = target->stretches.front().first;
    for (const auto& [from, to] : target->stretches) {
      if (from > told) {
        const auto after = std::ranges::upper_bound(target->items, from, {}, &Item::ordinal);
        Loss hole{.cause = LossCause::kDaemonGone,
                  .count = from - told,
                  .first_ordinal = told + 1,
                  .last_ordinal = from};
        const std::uint64_t out = OutOf(target->slot);
        if (after != target->items.end()) hole.before_replay = after->ref.replay + out;
        if (after != target->items.begin()) hole.after_replay = (after - 1)->ref.replay - out;
        if (IsWanted(hole)) target->losses.push_back(hole);
      }
      told = std::max(told, to);
    }
  }

  // How far beside a snapshot's replay the limit of a loss before or after it lies:
  // Loss::after_replay.
  static std::uint64_t OutOf(const recording::Slot& slot) { return slot.in_body ? 1 : 0; }

  bool IsWanted(const Loss& loss) const {
    const bool is_before = loss.before_replay > 0 && loss.before_replay <= options_.first_replay;
    return !is_before && loss.after_replay < options_.last_replay;
  }

  // The parts of `loss` that none of `items` fills and that hold something that was wanted.
  static void AppendMissing(const recording::Slot& slot, const Loss& loss,
                            const std::vector<Item>& items, std::vector<Loss>* losses) {
    const std::uint32_t every = slot.every;
    const std::uint64_t out = OutOf(slot);
    if (loss.first_ordinal == 0 || loss.last_ordinal < loss.first_ordinal) {
      losses->push_back(loss);
      return;
    }
    auto item = std::lower_bound(
        items.begin(), items.end(), loss.first_ordinal,
        [](const Item& one, std::uint64_t ordinal) { return one.ordinal < ordinal; });
    if (item == items.end() || item->ordinal > loss.last_ordinal) {
      losses->push_back(loss);
      return;
    }
    Loss part = loss;
    std::uint64_t left = loss.count;
    const auto add = [&](std::uint64_t end, std::uint64_t before_replay) {
      part.last_ordinal = end - 1;
      part.before_replay = before_replay;
      part.count = std::min(left, end - part.first_ordinal);
      if (every > 1 && before_replay != 0) {
        part.count = std::min(part.count, layout::WantedUpTo(every, before_replay - 1) -
                                              layout::WantedUpTo(every, part.after_replay));
      }
      left -= part.count;
      if (part.count != 0) losses->push_back(part);
    };
    for (; item != items.end() && item->ordinal <= loss.last_ordinal; ++item) {
      add(item->ordinal, item->ref.replay + out);
      left -= std::min<std::uint64_t>(left, 1);
      part.first_ordinal = item->ordinal + 1;
      part.after_replay = item->ref.replay - out;
    }
    add(loss.last_ordinal + 1, loss.before_replay);
  }

  Result<void> AddTargets() {
    for (const RecordingReader* reader : from_) {
      for (const recording::Session& session : reader->sessions()) {
        if (session.uuid.empty() || session_ids_.contains(session.uuid)) continue;
        const Result<std::uint32_t> id = writer_->AddSession(session);
        if (!id.ok()) return id.error();
        session_ids_[session.uuid] = *id;
      }
    }
    for (Target& target : targets_) {
      target.slot.session = session_ids_[target.session_uuid];
      const Result<std::uint32_t> id = writer_->AddSlot(target.slot);
      if (!id.ok()) return id.error();
      target.slot.id = *id;
    }
    return {};
  }

  // Ordinals ascend in each slot; those of one replay stay together.
  Result<void> CopyItems() {
    std::vector<Item> items;
    for (const Target& target : targets_) {
      items.insert(items.end(), target.items.begin(), target.items.end());
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::tie(a.ordinal, a.slot) < std::tie(b.ordinal, b.slot);
    });
    for (const Item& item : items) {
      if (options_.goes_on && !options_.goes_on()) return Error{"it was stopped"};
      CountSnapshotRead();
      Result<void> done = CopyLosses(&targets_[item.slot], item.ordinal);
      if (done.ok()) done = CopyFirstWhole(item);
      if (!done.ok()) return done;
    }
    for (Target& target : targets_) {
      if (Result<void> done = CopyLosses(&target, ~std::uint64_t{0}); !done.ok()) return done;
    }
    return {};
  }

  // Copies the losses before `ordinal`: the writer takes a slot's ordinals in order.
  Result<void> CopyLosses(Target* target, std::uint64_t ordinal) {
    for (; target->written_losses < target->losses.size(); ++target->written_losses) {
      Loss loss = target->losses[target->written_losses];
      if (loss.first_ordinal >= ordinal) break;
      loss.slot = target->slot.id;
      if (loss.cause == LossCause::kDamaged) loss.cause = LossCause::kLeftOut;
      if (Result<void> done = writer_->AddLoss(loss); !done.ok()) return done;
    }
    return {};
  }

  Result<void> CopyFirstWhole(const Item& item) {
    const std::vector<Item>& others = targets_[item.slot].others;
    auto other = std::ranges::lower_bound(others, item.ordinal, {}, &Item::ordinal);
    Result<bool> copied = CopyOne(item);
    for (; copied.ok() && !*copied; ++other) {
      if (other == others.end() || other->ordinal != item.ordinal) {
        return AddDamaged(item, targets_[item.slot].slot);
      }
      copied = CopyOne(*other);
    }
    return copied.ok() ? Result<void>() : copied.error();
  }

  // False when it is damaged. Fails: it cannot be written.
  Result<bool> CopyOne(const Item& item) {
    const RecordingReader& reader = *from_[item.reader];
    const recording::Slot& slot = targets_[item.slot].slot;
    Result<recording::Snapshot> snapshot = reader.Read(item.ref);
    if (!snapshot.ok()) return false;
    snapshot->slot = slot.id;
    if (snapshot->ordinal - slot.from_ordinal <= snapshot->skipped) {
      snapshot->skipped = snapshot->ordinal - slot.from_ordinal - 1;
    }
    std::span<const std::byte> bytes;
    Result<recording::Payload> payload = recording::Payload();
    if (!snapshot->stats_only) {
      payload = reader.ReadPayload(item.ref);
      if (!payload.ok()) return false;
      bytes = payload->bytes;
    }
    ++result_.snapshots;
    if (Result<void> done = writer_->Append(*std::move(snapshot), bytes); !done.ok()) {
      return done.error();
    }
    return true;
  }

  Result<void> AddDamaged(const Item& item, const recording::Slot& slot) {
    ++result_.damaged;
    Loss loss;
    loss.slot = slot.id;
    loss.cause = LossCause::kLeftOut;
    loss.count = 1;
    loss.first_ordinal = loss.last_ordinal = item.ordinal;
    loss.after_replay = item.ref.replay - 1;
    loss.before_replay = item.ref.replay + 1;
    return writer_->AddLoss(loss);
  }

  Result<void> CopyMarks() {
    for (const RecordingReader* reader : from_) {
      for (recording::Mark mark : reader->marks()) {
        if (mark.session >= reader->sessions().size()) continue;
        const std::string& uuid = reader->sessions()[mark.session].uuid;
        const auto session = session_ids_.find(uuid);
        if (session == session_ids_.end()) continue;
        mark.session = session->second;
        if (mark.slot >= 0) {
          if (static_cast<std::size_t>(mark.slot) >= reader->slots().size()) continue;
          const recording::Slot& slot = reader->slots()[static_cast<std::size_t>(mark.slot)];
          const auto target = target_of_.find({uuid, slot.index, slot.generation});
          if (target == target_of_.end()) continue;
          mark.slot = targets_[target->second].slot.id;
          if (is_range() && !FitToRange(targets_[target->second], &mark)) continue;
        }
        if (Result<void> done = writer_->AddMark(mark); !done.ok()) return done;
      }
    }
    return {};
  }

  bool is_range() const {
    return options_.first_replay > 1 || options_.last_replay < CopyOptions().last_replay;
  }

  // Ends the slot with what was copied of it. False: the mark is about another replay.
  bool FitToRange(const Target& target, recording::Mark* mark) const {
    if (recording::IsFinding(mark->kind)) {
      return mark->replay >= options_.first_replay && mark->replay <= options_.last_replay;
    }
    if (mark->kind != recording::MarkKind::kSlotClosed) return true;
    mark->ordinal = target.slot.from_ordinal;
    mark->skipped = 0;
    if (!target.items.empty()) mark->ordinal = target.items.back().ordinal;
    for (const Loss& loss : target.losses)
      mark->ordinal = std::max(mark->ordinal, loss.last_ordinal);
    return true;
  }

  // The copy is complete if each source is whole, or goes on beyond the last replay that is wanted.
  StopReason EndReason() const {
    const bool all_whole = std::all_of(from_.begin(), from_.end(), [&](const auto* reader) {
      return IsWhole(*reader) || reader->last_replay() > options_.last_replay;
    });
    if (!all_whole) return StopReason::kCutOff;
    return StopReason::kRequested;
  }

  const std::vector<const RecordingReader*>& from_;
  const CopyOptions& options_;
  CopyResult result_;
  std::unique_ptr<RecordingWriter> writer_;
  std::vector<Target> targets_;
  std::map<std::tuple<std::string, std::uint32_t, std::uint64_t>, std::size_t> target_of_;
  std::map<std::string, std::uint32_t> session_ids_;  // of the copy, by uuid
};

}  // namespace

Result<CopyResult> CopyRecordings(const std::vector<const RecordingReader*>& from,
                                  const std::string& to, const CopyOptions& options) {
  return Copier(from, options).Run(to);
}

}  // namespace cgdebug::source
