#include "daemon/record/recorder.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "daemon/core/recording/catalogue/catalogue.h"
#include "daemon/log/log.h"

namespace cgdebug::pipeline {
namespace {

using recording::StopReason;

constexpr std::size_t kMaxEnded = 64;
constexpr auto kWatchPeriod = std::chrono::milliseconds(100);
constexpr int kCatalogueEvery = 20;  // watch periods
// An entry that was claimed and not committed may never be: its job may be stopped in the middle.
constexpr auto kDrainPatience = std::chrono::seconds(5);

// The segments have everything: if the catalogue cannot be written now, a reader can make it later.
void UpdateCatalogue(const ActiveRecording& recording) {
  const auto updated = recording::UpdateCatalogue(recording.request().directory);
  if (!updated.ok()) Log("sinks")->warn("{}", updated.error().message);
}

bool IsMeant(const ActiveRecording& recording, const std::string& which) {
  const RecordRequest& request = recording.request();
  if (which.empty()) return !request.to_disk_only;
  return which == std::to_string(recording.id()) || which == request.directory;
}

}  // namespace

Recorder::Recorder(const recording::WriterOptions& options, Tell tell, SetLossless set_lossless,
                   RingReads* rings)
    : options_(options),
      rings_(rings),
      open_slots_(std::move(set_lossless)),
      jobs_(std::move(tell)),
      watcher_([this] { Watch(); }) {}

Recorder::~Recorder() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  watcher_.join();
  for (const Active& recording : std::exchange(active_, {})) {
    Finish(recording, StopReason::kDaemonStopped);
  }
}

// Ends recordings that are over: by time, by their replays, with their jobs, or by themselves.
void Recorder::Watch() {
  pthread_setname_np(pthread_self(), "cgdebug-record");
  std::unique_lock lock(mutex_);
  for (int round = 1; !stopping_; ++round) {
    wake_.wait_for(lock, kWatchPeriod);
    const auto is_late = [](const Active& recording) { return recording->IsLate(); };
    if (std::ranges::any_of(active_, is_late)) {
      lock.unlock();
      Drain(is_late);
      lock.lock();
    }
    std::vector<Active> growing;
    if (round % kCatalogueEvery == 0) growing = active_;
    std::vector<std::pair<Active, StopReason>> over;
    std::erase_if(active_, [&](const Active& recording) {
      const StopReason reason = recording->Over();
      if (reason != StopReason::kNone) over.emplace_back(recording, reason);
      return reason != StopReason::kNone;
    });
    for (const auto& [recording, reason] : over) finishing_.push_back(recording);
    if (!over.empty()) RecordingsChanged();
    lock.unlock();
    for (const Active& recording : growing) UpdateCatalogue(*recording);
    for (const auto& [recording, reason] : over) Finish(recording, reason);
    lock.lock();
  }
}

// Requires: `recording` is no longer in active_.
RecordingInfo Recorder::Finish(const Active& recording, StopReason reason) {
  if (recording::HadAll(reason)) recording->CloseSlots();
  const Result<void> closed = recording->writer().Close(reason);
  UpdateCatalogue(*recording);
  RecordingInfo info = recording->info();
  info.active = false;
  if (!closed.ok() && info.error.empty()) info.error = closed.error().message;
  Log("sinks")->info("recording {}: {}, {} snapshots, {} bytes{}{}", info.directory, info.state,
                     info.snapshots, info.bytes, info.error.empty() ? "" : "; ", info.error);
  const std::scoped_lock lock(mutex_);
  AddEnded(info);
  std::erase(finishing_, recording);
  finished_.notify_all();
  if (!info.error.empty()) jobs_.TellStopped(recording->request(), info);
  return info;
}

void Recorder::AddEnded(RecordingInfo info) {
  ended_.push_back(std::move(info));
  if (ended_.size() > kMaxEnded) ended_.pop_front();
}

Result<RecordingInfo> Recorder::Start(RecordRequest request) {
  std::unique_lock lock(mutex_);
  const std::uint64_t id = ++last_id_;
  lock.unlock();
  auto started = ActiveRecording::Start(id, std::move(request), options_);
  if (!started.ok()) return started.error();
  const Active recording = *std::move(started);
  const auto begin = [&](const RingHeads& heads) {
    const std::scoped_lock feeding(mutex_);
    open_slots_.Begin(heads, recording.get());
    for (const auto& [session, kinds] : not_seen_) {
      for (const auto& [kind, one] : kinds) recording->BeginNotSeen(session, one);
    }
    active_.push_back(recording);
    RecordingsChanged();
    recording->Flush();
  };
  if (rings_ == nullptr) {
    begin({});
  } else {
    rings_->AtHeads(begin);
    // The ingest thread tells the jobs to lose nothing on its next round, before it serves this.
    rings_->AtHeads([](const RingHeads&) {});
  }
  lock.lock();
  return recording->info();
}

void Recorder::RecordingsChanged() {
  open_slots_.Tell(active_);
  const bool awaits = std::ranges::any_of(
      active_, [](const Active& recording) { return recording->selection().AwaitsJobs(); });
  if (!awaits) return mark_.Drop();
  if (!mark_.Hold()) {
    Log("sinks")->warn(
        "the mark that a recording waits cannot be set in /dev/shm: jobs that start from now on do "
        "not wait for it, and may lose snapshots");
  }
}

void Recorder::Drain(const std::function<bool(const Active&)>& is_meant) {
  const auto end = [&](const RingHeads& heads) {
    const std::scoped_lock lock(mutex_);
    for (const Active& recording : active_) {
      if (is_meant(recording)) recording->EndAt(heads);
    }
  };
  if (rings_ == nullptr) return end({});
  if (!rings_->Drain(end, kDrainPatience)) {
    Log("sinks")->warn(
        "a ring was not read up to its head in time; what is left of it is lost to "
        "the recordings that end");
  }
}

Result<std::vector<RecordingInfo>> Recorder::Stop(const std::string& which, StopReason reason) {
  Drain([&](const Active& recording) { return IsMeant(*recording, which); });
  std::vector<Active> stopped;
  {
    std::unique_lock lock(mutex_);
    std::erase_if(active_, [&](const Active& recording) {
      const bool meant = IsMeant(*recording, which);
      if (meant) stopped.push_back(recording);
      return meant;
    });
    finishing_.insert(finishing_.end(), stopped.begin(), stopped.end());
    if (!stopped.empty()) RecordingsChanged();
    if (stopped.empty() && which.empty()) {
      return Error{"nothing is being recorded. Type: cgdebug-cli record start -o DIR"};
    }
    if (stopped.empty()) {
      // If it ends by itself at this moment, the client that stops it made no mistake.
      finished_.wait(lock, [&] {
        return std::ranges::none_of(
            finishing_, [&](const Active& recording) { return IsMeant(*recording, which); });
      });
      for (auto info = ended_.rbegin(); info != ended_.rend(); ++info) {
        if (which == std::to_string(info->id) || which == info->directory) {
          return std::vector<RecordingInfo>{*info};
        }
      }
      return Error{"no recording '" + which + "' is in progress. Type: cgdebug-cli record list"};
    }
  }
  std::vector<RecordingInfo> infos;
  for (const Active& recording : stopped) infos.push_back(Finish(recording, reason));
  return infos;
}

std::vector<RecordingInfo> Recorder::List() const {
  const std::scoped_lock lock(mutex_);
  std::vector<RecordingInfo> infos;
  for (const Active& recording : active_) infos.push_back(recording->info());
  for (const Active& recording : finishing_) infos.push_back(recording->info());
  infos.insert(infos.end(), ended_.rbegin(), ended_.rend());
  return infos;
}

bool Recorder::WaitForFinishing(std::chrono::nanoseconds patience) {
  std::unique_lock lock(mutex_);
  wake_.notify_all();
  return finished_.wait_for(lock, patience, [&] {
    return finishing_.empty() && std::ranges::none_of(active_, [](const Active& recording) {
             return recording->Over() == StopReason::kJobEnded;
           });
  });
}

bool Recorder::busy() const {
  const std::scoped_lock lock(mutex_);
  return !active_.empty();
}

void Recorder::StartToDisk(const SessionPtr& job) {
  auto request = jobs_.Add(job);
  if (!request) return;
  auto started = ActiveRecording::Start(++last_id_, *std::move(request), options_);
  if (!started.ok()) return AddEnded(jobs_.Refuse(job, last_id_, started.error()));
  Log("sinks")->info("session {} ({}) is recorded into {}", job->key, job->label,
                     (*started)->request().directory);
  for (const auto& [kind, one] : not_seen_[job]) (*started)->NotSeen(job, one);
  active_.push_back(*std::move(started));
}

void Recorder::OpenSlot(const SlotPtr& slot, SlotFeedback& feedback) {
  const std::scoped_lock lock(mutex_);
  if (slot->Has(layout::kActionRecordToDisk)) StartToDisk(slot->session);
  open_slots_.Open(slot, feedback.consumed_before(), active_);
  for (const Active& recording : active_) {
    const bool all = recording->request().to_disk_only;
    if (recording->selection().Wants(*slot))
      recording->Open(slot, all ? 0 : feedback.consumed_before());
  }
  FlushActive();
}

void Recorder::Consume(const Delivery& delivery, SlotFeedback& feedback) {
  const std::scoped_lock lock(mutex_);
  const SnapshotPtr& snapshot = delivery.snapshot;
  open_slots_.See(snapshot->slot, snapshot->ordinal);
  for (const Active& recording : active_) {
    // Only a recording that continues one of an earlier daemon takes what that daemon consumed.
    if (delivery.seen_before && !recording->request().to_disk_only) continue;
    recording->Consume({snapshot, delivery.payload}, delivery.comparison, feedback.suppressed());
  }
}

void Recorder::Lose(const Gap& gap) {
  const std::scoped_lock lock(mutex_);
  open_slots_.See(gap.slot, gap.last_ordinal);
  for (const Active& recording : active_) recording->Lose(gap);
}

void Recorder::Found(const Finding& finding) {
  const std::scoped_lock lock(mutex_);
  for (const Active& recording : active_) recording->Found(finding);
}

void Recorder::CloseSlot(const SlotPtr& slot, std::uint64_t last_replay, SlotFeedback& feedback) {
  const std::scoped_lock lock(mutex_);
  open_slots_.Close(slot);
  for (const Active& recording : active_) {
    recording->Close(slot, last_replay, feedback.suppressed());
  }
  FlushActive();
}

void Recorder::NotSeen(const SessionPtr& session, const layout::NotSeen& not_seen) {
  const std::scoped_lock lock(mutex_);
  not_seen_[session][not_seen.kind] = not_seen;
  for (const Active& recording : active_) recording->NotSeen(session, not_seen);
  FlushActive();
}

void Recorder::EndSession(const SessionPtr& session, bool died) {
  const std::scoped_lock lock(mutex_);
  not_seen_.erase(session);
  open_slots_.End(session);
  jobs_.End(session);
  for (const Active& recording : active_) recording->EndSession(session, died);
  FlushActive();
  wake_.notify_all();
}

void Recorder::Flush() {
  const std::scoped_lock lock(mutex_);
  FlushActive();
}

void Recorder::FlushActive() {
  for (const Active& recording : active_) recording->Flush();
}

}  // namespace cgdebug::pipeline
