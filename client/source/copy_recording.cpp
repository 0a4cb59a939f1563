#include "client/source/copy_recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>

#include "client/source/copy_plan.h"
#include "client/source/source.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::source {
namespace {

using layout::LossCause;
using recording::Loss;
using recording::RecordingReader;
using recording::RecordingWriter;
using recording::StopReason;

bool IsWhole(const RecordingReader& reader) {
  return reader.closed() && reader.damage().empty() && recording::HadAll(reader.stop_reason());
}

class Copier {
 public:
  Copier(const std::vector<const RecordingReader*>& from, const CopyOptions& options)
      : from_(from), options_(options), plan_(from, options) {}

  Result<CopyResult> Run(const std::string& to) {
    result_.slots = plan_.slots().size();
    result_.lost = plan_.lost();
    const std::uint64_t snapshots = plan_.snapshots();
    result_.is_nothing = plan_.slots().empty() || (plan_.is_range() && snapshots == 0);
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
  Result<void> AddTargets() {
    for (const RecordingReader* reader : from_) {
      for (const recording::Session& session : reader->sessions()) {
        if (session.uuid.empty() || session_ids_.contains(session.uuid)) continue;
        const Result<std::uint32_t> id = writer_->AddSession(session);
        if (!id.ok()) return id.error();
        session_ids_[session.uuid] = *id;
      }
    }
    for (CopiedSlot& target : plan_.slots()) {
      target.slot.session = session_ids_[target.session_uuid];
      const Result<std::uint32_t> id = writer_->AddSlot(target.slot);
      if (!id.ok()) return id.error();
      target.slot.id = *id;
    }
    return {};
  }

  // Ordinals ascend in each slot; those of one replay stay together.
  Result<void> CopyItems() {
    std::vector<CopiedItem> items;
    for (const CopiedSlot& target : plan_.slots()) {
      items.insert(items.end(), target.items.begin(), target.items.end());
    }
    std::stable_sort(items.begin(), items.end(), [](const CopiedItem& a, const CopiedItem& b) {
      return std::tie(a.ordinal, a.slot) < std::tie(b.ordinal, b.slot);
    });
    for (const CopiedItem& item : items) {
      if (options_.goes_on && !options_.goes_on()) return Error{"it was stopped"};
      CountSnapshotRead();
      Result<void> done = CopyLosses(&plan_.slots()[item.slot], item.ordinal);
      if (done.ok()) done = CopyFirstWhole(item);
      if (!done.ok()) return done;
    }
    for (CopiedSlot& target : plan_.slots()) {
      if (Result<void> done = CopyLosses(&target, ~std::uint64_t{0}); !done.ok()) return done;
    }
    return {};
  }

  // Copies the losses before `ordinal`: the writer takes a slot's ordinals in order.
  Result<void> CopyLosses(CopiedSlot* target, std::uint64_t ordinal) {
    for (; target->written_losses < target->losses.size(); ++target->written_losses) {
      Loss loss = target->losses[target->written_losses];
      if (loss.first_ordinal >= ordinal) break;
      loss.slot = target->slot.id;
      if (loss.cause == LossCause::kDamaged) loss.cause = LossCause::kLeftOut;
      if (Result<void> done = writer_->AddLoss(loss); !done.ok()) return done;
    }
    return {};
  }

  Result<void> CopyFirstWhole(const CopiedItem& item) {
    const std::vector<CopiedItem>& others = plan_.slots()[item.slot].others;
    auto other = std::ranges::lower_bound(others, item.ordinal, {}, &CopiedItem::ordinal);
    Result<bool> copied = CopyOne(item);
    for (; copied.ok() && !*copied; ++other) {
      if (other == others.end() || other->ordinal != item.ordinal) {
        return AddDamaged(item, plan_.slots()[item.slot].slot);
      }
      copied = CopyOne(*other);
    }
    return copied.ok() ? Result<void>() : copied.error();
  }

  // False when it is damaged. Fails: it cannot be written.
  Result<bool> CopyOne(const CopiedItem& item) {
    const RecordingReader& reader = *from_[item.reader];
    const recording::Slot& slot = plan_.slots()[item.slot].slot;
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

  Result<void> AddDamaged(const CopiedItem& item, const recording::Slot& slot) {
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
          const CopiedSlot* const target = plan_.Find(uuid, slot);
          if (target == nullptr) continue;
          mark.slot = target->slot.id;
          if (plan_.is_range() && !plan_.FitToRange(*target, &mark)) continue;
        }
        if (Result<void> done = writer_->AddMark(mark); !done.ok()) return done;
      }
    }
    return {};
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
  CopyPlan plan_;
  CopyResult result_;
  std::unique_ptr<RecordingWriter> writer_;
  std::map<std::string, std::uint32_t> session_ids_;  // of the copy, by uuid
};

}  // namespace

Result<CopyResult> CopyRecordings(const std::vector<const RecordingReader*>& from,
                                  const std::string& to, const CopyOptions& options) {
  return Copier(from, options).Run(to);
}

}  // namespace cgdebug::source
