#include <utility>
#include <vector>

#include "daemon/core/base/realtime.h"
#include "daemon/core/recording/recording_writer.h"

// How a writer flushes to the system and commits to the disk.
namespace cgdebug::recording {

using layout::IndexRow;
using layout::RecordType;

Result<void> RecordingWriter::FlushSegment() {
  auto flushed = segment_->Flush();
  if (!flushed.ok()) ForgetUnwritten();
  return flushed;
}

// After a failure: counts records that were accepted but not written.
void RecordingWriter::ForgetUnwritten() {
  const std::uint64_t end = segment_->bytes();
  const std::size_t snapshots =
      std::erase_if(rows_, [&](const IndexRow& row) { return row.offset >= end; });
  std::erase_if(others_, [&](std::uint64_t offset) { return offset >= end; });
  status_.snapshots -= snapshots;
  status_.refused += snapshots;
  next_number_ = segment_->unwritten_number();
  status_.records = next_number_ - 1;
}

Result<void> RecordingWriter::Flush() {
  const std::scoped_lock lock(mutex_);
  if (status_.stopped != StopReason::kNone) return {};
  auto flushed = FlushSegment();
  if (!flushed.ok()) FinishAfter(flushed);
  return flushed;
}

// Waits for the disk without the lock, so that others can go on writing.
Result<void> RecordingWriter::Commit() {
  const std::scoped_lock commit_lock(commit_mutex_);
  std::vector<std::shared_ptr<SegmentWriter>> segments;
  struct {
    std::uint64_t records = 0;
    std::uint64_t snapshots = 0;
  } target;
  {
    const std::scoped_lock lock(mutex_);
    if (sync_failed_) return Refused();
    if (status_.records == status_.durable_records) return {};
    if (auto flushed = FlushSegment(); !flushed.ok()) {
      FinishAfter(flushed);
      return flushed;
    }
    segments = std::exchange(unsynced_, {});
    if (segments.empty() || segments.back() != segment_) segments.push_back(segment_);
    target = {status_.records, status_.snapshots};
    uncommitted_bytes_ = 0;
  }
  for (const auto& segment : segments) {
    if (auto synced = segment->Sync(); !synced.ok()) {
      const std::scoped_lock lock(mutex_);
      sync_failed_ = true;
      Finish(StopReason::kWriteError, synced.error().message);
      return synced;
    }
  }
  const std::scoped_lock lock(mutex_);
  status_.durable_records = target.records;
  status_.durable_snapshots = target.snapshots;
  if (status_.stopped != StopReason::kNone) return {};
  const bool nothing_new = status_.records == target.records;
  auto written =
      WriteMeta(RecordType::kCommit, Encode(recording::Commit{target.records, RealtimeNs()}));
  // A commit record alone needs no further commit.
  if (nothing_new) status_.durable_records = status_.records;
  return written;
}

void RecordingWriter::CommitLoop() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    commit_due_.wait_for(lock, options_.commit_interval);
    if (closing_) return;
    if (options_.durability != Durability::kInterval) continue;
    lock.unlock();
    // A failure stops the recording and is in its status.
    [[maybe_unused]] const auto committed = Commit();
    lock.lock();
  }
}

Result<void> RecordingWriter::Close(StopReason reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(closing_, true)) return {};
    Finish(reason, "");
  }
  commit_due_.notify_all();
  if (commit_thread_.joinable()) commit_thread_.join();
  if (options_.durability == Durability::kNone) return {};
  return Commit();
}

}  // namespace cgdebug::recording
