#include "client/source/recording_source.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "client/source/merged_source.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::source {
namespace {

using recording::RecordingReader;
using recording::SnapshotRef;

constexpr std::size_t kWorthMappingBytes = 64 << 10;

bool EndedAsWanted(const RecordingReader& reader) {
  return reader.closed() && recording::HadAll(reader.stop_reason());
}

// Whether every process of this machine that the recording covers has ended. A job in a container
// has process ids of its own, so for it the answer may be wrong.
bool JobsAreGone(const RecordingReader& reader) {
  return !reader.sessions().empty() &&
         std::ranges::all_of(reader.sessions(), [](const recording::Session& session) {
           return session.pid > 0 && kill(session.pid, 0) != 0 && errno == ESRCH;
         });
}

// A daemon closes a recording some milliseconds after its last job ended. A user who asks right
// after the job must see a whole recording.
Result<void> WaitForClose(RecordingReader* reader) {
  constexpr auto kPatience = std::chrono::seconds(2);
  constexpr auto kPoll = std::chrono::milliseconds(5);
  if (reader->closed() || !reader->being_written() || !JobsAreGone(*reader)) return {};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (reader->being_written() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPoll);
  }
  return reader->Refresh();
}

class RecordingSource : public Source {
 public:
  explicit RecordingSource(std::unique_ptr<RecordingReader> reader) : reader_(std::move(reader)) {
    slots_.reserve(reader_->slots().size());
    for (const recording::Slot& slot : reader_->slots()) AddSlot(slot);
    NameGraphs();
  }

  Description Describe() const override {
    Description description{.path = reader_->directory(), .kind = "recording"};
    for (const recording::Session& session : reader_->sessions()) {
      description.sessions.push_back(session.label);
    }
    description.bytes = reader_->bytes();
    description.is_growing = !reader_->closed() && reader_->being_written();
    description.is_cut_off = !description.is_growing && !EndedAsWanted(*reader_);
    if (reader_->closed()) {
      description.ending = recording::ToText(reader_->stop_reason());
    } else {
      description.ending = description.is_growing ? "still being written"
                                                  : "its writer was killed, or it was cut off";
    }
    for (const recording::Damage& damage : reader_->damage()) {
      description.damage.push_back(
          fmt::format("{} at byte {}: {}", damage.file, damage.offset, damage.what));
    }
    if (const Result<void> all = reader_->FetchedAll(); !all.ok()) {
      description.unread.push_back(all.error().message);
    }
    if (!HaveJobsEnded(*this)) {
      for (const recording::Session& one : reader_->sessions())
        description.running.insert(one.uuid);
    }
    std::map<std::pair<std::uint32_t, layout::NotSeenKind>, layout::NotSeen> newest;
    for (const recording::Mark& mark : reader_->marks()) {
      const bool is_end = mark.kind == recording::MarkKind::kSessionEnded ||
                          mark.kind == recording::MarkKind::kSessionDied;
      if (is_end && mark.session < reader_->sessions().size()) {
        description.running.erase(reader_->sessions()[mark.session].uuid);
      }
      if (mark.not_seen && mark.session < reader_->sessions().size()) {
        newest[{mark.session, mark.not_seen->kind}] = *mark.not_seen;
      }
    }
    for (auto& [key, what] : newest) {
      description.not_seen.push_back({ProcessOf(key.first), std::move(what)});
    }
    return description;
  }

  const std::vector<Slot>& slots() const override { return slots_; }

  Result<std::vector<Key>> Keys(std::size_t slot) override {
    std::vector<Key> keys;
    keys.reserve(reader_->snapshot_count(Id(slot)));
    for (const SnapshotRef& ref : reader_->Snapshots(Id(slot))) {
      keys.push_back({ref.replay, ref.ordinal, ref.iteration});
    }
    return keys;
  }

  Result<std::optional<Key>> Find(std::size_t slot, std::uint64_t replay,
                                  std::optional<std::uint32_t> iteration) override {
    std::optional<Key> found;
    for (const SnapshotRef& ref : reader_->Snapshots(Id(slot), replay, replay)) {
      if (!iteration || ref.iteration == *iteration)
        found = {ref.replay, ref.ordinal, ref.iteration};
    }
    return found;
  }

  Result<Snapshot> Get(std::size_t slot, const Key& key) override {
    CountSnapshotRead();
    const Result<SnapshotRef> ref = RefOf(slot, key);
    if (!ref.ok()) return ref.error();
    const Result<recording::Snapshot> read = reader_->Read(*ref);
    if (!read.ok()) return read.error();
    return Snapshot{.slot = slot,
                    .key = key,
                    .serial = read->serial,
                    .step = read->step,
                    .timestamp_ns = read->timestamp_ns,
                    .has_values = !read->stats_only,
                    .payload_bytes = read->payload_bytes,
                    .stats = read->stats,
                    .comparison = read->compared ? std::optional(read->comparison) : std::nullopt,
                    .hash = HashOf(*read)};
  }

  Result<Values> Load(const Snapshot& snapshot) override {
    const Result<SnapshotRef> ref = RefOf(snapshot.slot, snapshot.key);
    if (!ref.ok()) return ref.error();
    return ToValues(reader_->ReadPayload(*ref));
  }

  // Maps only a finished recording: one that is being written or was cut off may lose its end.
  Result<Values> LoadWritable(const Snapshot& snapshot) override {
    if (snapshot.payload_bytes < kWorthMappingBytes || !reader_->closed()) return Load(snapshot);
    const Result<SnapshotRef> ref = RefOf(snapshot.slot, snapshot.key);
    if (!ref.ok()) return ref.error();
    return ToValues(reader_->MapPayload(*ref));
  }

  Result<void> Verify(std::size_t slot, const Key& key) const override {
    const Result<SnapshotRef> ref = RefOf(slot, key);
    if (!ref.ok()) return ref.error();
    return reader_->VerifyPayload(*ref);
  }

  std::vector<Gap> Gaps() override {
    std::vector<Gap> gaps;
    for (const recording::Loss& loss : reader_->losses()) {
      if (loss.slot >= slots_.size()) continue;
      gaps.push_back({loss.slot, loss.count, loss.after_replay, loss.before_replay,
                      std::string(ToText(loss.cause))});
    }
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (reader_->slots()[slot].probe.empty() && reader_->snapshot_count(Id(slot)) > 0) {
        gaps.push_back({slot, reader_->snapshot_count(Id(slot)), 0, 0,
                        "the record that names the probe is damaged"});
      }
    }
    return gaps;
  }

  Result<recording::Account> AccountOf(std::size_t slot) override {
    return reader_->AccountOf(Id(slot));
  }

  // A daemon that continues a recording writes down again what the earlier daemon found.
  std::vector<Finding> Findings() override {
    std::vector<Finding> findings;
    std::set<std::pair<std::int64_t, recording::MarkKind>> told;
    for (const recording::Mark& mark : reader_->marks()) {
      const bool is_slot = mark.slot >= 0 && static_cast<std::size_t>(mark.slot) < slots_.size();
      if (!recording::IsFinding(mark.kind) || !is_slot) continue;
      if (!told.emplace(mark.slot, mark.kind).second) continue;
      findings.push_back(
          {.slot = static_cast<std::size_t>(mark.slot),
           .kind = mark.kind == recording::MarkKind::kFirstNan   ? layout::FindingKind::kNan
                   : mark.kind == recording::MarkKind::kFirstInf ? layout::FindingKind::kInf
                   : mark.kind == recording::MarkKind::kFirstUnequal
                       ? layout::FindingKind::kReplica
                       : layout::FindingKind::kMismatch,
           .replay = mark.replay,
           .serial = mark.serial,
           .step = mark.step,
           .timestamp_ns = mark.timestamp_ns,
           .count = mark.count,
           .text = mark.text});
    }
    return findings;
  }

  std::vector<const RecordingReader*> Recordings() const override { return {reader_.get()}; }

 private:
  static std::uint32_t Id(std::size_t slot) { return static_cast<std::uint32_t>(slot); }

  static Result<Values> ToValues(Result<recording::Payload> payload) {
    if (!payload.ok()) return payload.error();
    return Values{payload->bytes, std::move(payload->keep)};
  }

  // The hash of the values; a snapshot without values may have none.
  static std::optional<std::uint64_t> HashOf(const recording::Snapshot& snapshot) {
    if (snapshot.payload_hash == 0) return std::nullopt;
    return snapshot.payload_hash;
  }

  Result<SnapshotRef> RefOf(std::size_t slot, const Key& key) const {
    const std::optional<SnapshotRef> ref = reader_->FindOrdinal(Id(slot), key.id);
    if (ref) return *ref;
    return Error{fmt::format("{} has no replay {} of {}", reader_->directory(),
                             ReplayText(slots_[slot], key), SlotText(slots_[slot]))};
  }

  void AddSlot(const recording::Slot& from) {
    Slot slot = ProcessOf(from.session);
    slot.probe = from.probe.empty() ? fmt::format("(damaged slot {})", from.id) : from.probe;
    slot.device = from.device;
    slot.site = from.site;
    slot.shard = from.shard;
    slot.part = from.part;
    slot.op = from.op;
    slot.details = from.details;
    slot.dtype = from.dtype;
    slot.dtype_name = layout::DtypeName(from.dtype);
    slot.shape = from.shape;
    slot.payload_bytes = from.payload_bytes;
    slot.graph_id = from.graph_id;
    slot.invocation = from.invocation;
    slot.order = from.order;
    slot.every = from.every;
    slot.in_body = from.in_body;
    slot.thread = from.thread;
    slot.graph_is_given = !from.graph_label.empty();
    slots_.push_back(std::move(slot));
  }

  // A slot that knows its process alone.
  Slot ProcessOf(std::uint32_t id) const {
    Slot slot;
    if (id >= reader_->sessions().size()) return slot;
    const recording::Session& session = reader_->sessions()[id];
    slot.session = session.label;
    slot.rank = session.rank;
    slot.uuid = session.uuid;
    slot.run = session.run_id;
    slot.host = session.hostname;
    slot.world_size = session.world_size;
    slot.restart = session.restart_count;
    return slot;
  }

  // Names the graphs of each session separately.
  void NameGraphs() {
    std::map<std::uint32_t, std::vector<std::size_t>> sessions;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      sessions[reader_->slots()[i].session].push_back(i);
    }
    for (const auto& [session, members] : sessions) {
      std::vector<GraphSlot> slots;
      for (const std::size_t member : members) {
        const recording::Slot& slot = reader_->slots()[member];
        slots.push_back({.graph_id = slot.graph_id,
                         .order = slot.order,
                         .probe = slot.probe,
                         .invocation = slot.invocation,
                         .shape = slot.shape,
                         .label = slot.graph_label});
      }
      const GraphLabels labels = NameGraphsOf(slots);
      const std::vector<std::string> qualifiers = SlotQualifiers(slots, labels);
      for (std::size_t i = 0; i < members.size(); ++i) {
        slots_[members[i]].qualifier = qualifiers[i];
        if (slots[i].graph_id != 0) slots_[members[i]].graph = labels.at(slots[i].graph_id);
      }
    }
  }

  std::unique_ptr<RecordingReader> reader_;
  std::vector<Slot> slots_;
};

}  // namespace

Result<std::unique_ptr<Source>> OpenRecording(const std::string& directory) {
  Result<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(directory);
  if (!reader.ok()) return reader.error();
  if (const Result<void> waited = WaitForClose(reader->get()); !waited.ok()) return waited.error();
  CountSnapshotsKnown((*reader)->snapshot_count());
  return std::unique_ptr<Source>(std::make_unique<RecordingSource>(*std::move(reader)));
}

Result<std::unique_ptr<Source>> OpenRecordings(const std::string& folder,
                                               const std::vector<std::string>& directories,
                                               std::vector<std::string> unread) {
  std::vector<std::unique_ptr<Source>> parts;
  for (const std::string& directory : directories) {
    Result<std::unique_ptr<Source>> part = OpenRecording(directory);
    if (part.ok()) {
      parts.push_back(*std::move(part));
    } else {
      unread.push_back(part.error().message);
    }
  }
  if (parts.empty()) return Error{unread.front()};
  return Merge(folder, std::move(parts), std::move(unread));
}

}  // namespace cgdebug::source
