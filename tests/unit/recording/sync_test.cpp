// Nothing is called durable before the disk has it, and a writer continues with exactly what was
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"

namespace {

std::set<std::string> synced;           // names of the files
std::function<void()> during_the_sync;  // called once

}  // namespace

// Replaces the C library's function.
extern "C" int fdatasync(int fd) {
  std::error_code ignored;
  synced.insert(
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).filename());
  if (const auto call = std::exchange(during_the_sync, nullptr)) call();
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

namespace cgdebug::recording {
namespace {

using testing::Contains;
using testing_support::AppendAt;
using testing_support::FloatSlot;
using testing_support::SessionOf;

class SyncedRecording : public testing::Test {
 protected:
  std::unique_ptr<RecordingWriter> Write(const std::string& path, const WriterOptions& options) {
    auto opened = RecordingWriter::Open(path, options);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return *std::move(opened);
  }
  void AddProbe(RecordingWriter* writer) {
    const auto session = writer->AddSession(SessionOf());
    ASSERT_TRUE(writer->AddSlot(FloatSlot(*session, "x", 1024, 0)).ok());
  }
  // As a daemon's death leaves it.
  std::string CopyOfUnfinished() {
    const std::string copy = dir_ / "copy.cgrec";
    std::filesystem::create_directories(copy);
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("segment-")) std::filesystem::copy(entry.path(), copy + "/" + name);
    }
    return copy;
  }

  testing_support::TempDir dir_;
  std::string path_ = dir_ / "a.cgrec";
};

TEST_F(SyncedRecording, ACommitWaitsForEverySegmentSinceTheLast) {
  auto writer = Write(path_, {.roll_bytes = 20'000, .durability = Durability::kNone});
  AddProbe(writer.get());
  for (std::uint64_t replay = 1; replay <= 10; ++replay) {
    AppendAt(writer.get(), 0, replay, 1024);
  }
  synced.clear();
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_THAT(synced, Contains("segment-000001.cgd"));
  EXPECT_THAT(synced, Contains("segment-000002.cgd"));
}

TEST_F(SyncedRecording, WhatIsAppendedWhileTheDiskIsWaitedForIsNotDurable) {
  auto writer = Write(path_, {.durability = Durability::kNone});
  AddProbe(writer.get());
  AppendAt(writer.get(), 0, 1, 1024);
  during_the_sync = [&] { AppendAt(writer.get(), 0, 2, 1024); };
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(writer->status().snapshots, 2u);
  EXPECT_EQ(writer->status().durable_snapshots, 1u);
  EXPECT_LT(writer->status().durable_records, writer->status().records);
}

TEST_F(SyncedRecording, AWriterThatGoesOnWaitsForTheSegmentThatItEnds) {
  auto writer = Write(path_, {.durability = Durability::kNone});
  AddProbe(writer.get());
  AppendAt(writer.get(), 0, 1, 1024);
  ASSERT_TRUE(writer->Flush().ok());
  const std::string copy = CopyOfUnfinished();
  synced.clear();
  const auto next = Write(copy, {.durability = Durability::kNone});
  EXPECT_THAT(synced, Contains("segment-000001.cgd"));
}

TEST_F(SyncedRecording, AWriterThatGoesOnBehindALossDoesNotCountItAgain) {
  auto writer = Write(path_, {.durability = Durability::kNone});
  AddProbe(writer.get());
  AppendAt(writer.get(), 0, 1, 1024);
  Loss loss;
  loss.slot = 0;
  loss.count = 3;
  loss.first_ordinal = 2;
  loss.last_ordinal = 4;
  loss.after_replay = 1;
  loss.before_replay = 5;
  ASSERT_TRUE(writer->AddLoss(loss).ok());
  ASSERT_TRUE(writer->Flush().ok());
  const std::string copy = CopyOfUnfinished();
  auto next = Write(copy, {.durability = Durability::kNone});
  EXPECT_EQ(next->last(0).ordinal, 4u);
  EXPECT_EQ(next->status().lost, 3u);
  AppendAt(next.get(), 0, 5, 1024);
  ASSERT_TRUE(next->Close(StopReason::kRequested).ok());
  const auto reader = *RecordingReader::Open(copy);
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].count, 3u);
}

TEST_F(SyncedRecording, ALossThatIsToldTwiceIsCountedOnce) {
  auto writer = Write(path_, {});
  AddProbe(writer.get());
  const Loss loss{.count = 3, .first_ordinal = 1, .last_ordinal = 3, .before_replay = 4};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer->AddLoss(loss).ok());
  EXPECT_EQ(writer->status().lost, 3u);
}

TEST_F(SyncedRecording, AWriterThatGoesOnCountsTheBytesOfEachFileOnce) {
  auto writer = Write(path_, {.roll_bytes = 20'000, .durability = Durability::kNone});
  AddProbe(writer.get());
  for (std::uint64_t replay = 1; replay <= 10; ++replay) {
    AppendAt(writer.get(), 0, replay, 1024);
  }
  ASSERT_TRUE(writer->Flush().ok());
  const std::string copy = CopyOfUnfinished();
  auto next = Write(copy, {.durability = Durability::kNone});
  ASSERT_TRUE(next->Close(StopReason::kRequested).ok());
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(copy)) {
    if (entry.path().filename() != "lock") bytes += entry.file_size();
  }
  EXPECT_EQ(next->status().bytes, bytes);
}

TEST_F(SyncedRecording, NoSnapshotReachesPastTheSizeAtWhichAFileEnds) {
  constexpr std::uint64_t kRollBytes = 30'000, kElements = 1000;
  auto writer = Write(path_, {.roll_bytes = kRollBytes, .durability = Durability::kNone});
  ASSERT_TRUE(writer->AddSlot(FloatSlot(*writer->AddSession(SessionOf()), "x", kElements, 0)).ok());
  for (std::uint64_t replay = 1; replay <= 40; ++replay) {
    AppendAt(writer.get(), 0, replay, kElements);
  }
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = *RecordingReader::Open(path_);
  EXPECT_GT(reader->segment_count(), 4u);
  for (const SnapshotRef& ref : reader->Snapshots(0)) {
    EXPECT_LE(ref.offset + kElements * sizeof(float), kRollBytes) << "replay " << ref.replay;
  }
}

// Records that are whole and valid, in the file of another recording or another segment.
TEST_F(SyncedRecording, ARecordOfAnotherRecordingOrSegmentIsDamage) {
  const std::string other_path = dir_ / "b.cgrec";
  for (const std::string& path : {path_, other_path}) {
    auto writer = Write(path, {.roll_bytes = 30'000, .durability = Durability::kNone});
    AddProbe(writer.get());
    for (std::uint64_t replay = 1; replay <= 20; ++replay) {
      AppendAt(writer.get(), 0, replay, 1024);
    }
    ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  }
  const auto snapshots_of = [](const SegmentFile& file) {
    std::map<std::uint64_t, Record> found;  // by where they lie
    Record record;
    for (std::uint64_t at = layout::kFileHeaderBytes; file.Read(at, &record) == ReadStatus::kRecord;
         at = record.next()) {
      if (record.type() == layout::RecordType::kSnapshot) found.emplace(at, record);
    }
    return found;
  };
  for (const bool same_recording : {true, false}) {
    std::filesystem::remove_all(dir_ / "c.cgrec");
    std::filesystem::copy(path_, dir_ / "c.cgrec", std::filesystem::copy_options::recursive);
    const auto from =
        *SegmentFile::Open((same_recording ? path_ : other_path) +
                           (same_recording ? "/segment-000002.cgd" : "/segment-000001.cgd"));
    const std::string target = dir_ / "c.cgrec/segment-000001.cgd";
    std::uint64_t offset = 0;
    std::string bytes;
    {
      const auto into = *SegmentFile::Open(target);
      const auto here = snapshots_of(*into);
      for (const auto& [at, record] : snapshots_of(*from)) {
        const auto found = here.find(at);
        if (found == here.end() || found->second.next() != record.next()) continue;
        offset = at;
        bytes.resize(record.next() - at);
      }
    }
    ASSERT_NE(offset, 0u) << "no two records lie at one place";
    std::ifstream(from->path(), std::ios::binary)
        .seekg(static_cast<std::streamoff>(offset))
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::fstream(target, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(offset))
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const auto reader = *RecordingReader::Open(dir_ / "c.cgrec", {.trust_index = false});
    EXPECT_EQ(reader->snapshot_count(), 19u) << same_recording;
    EXPECT_FALSE(reader->complete()) << same_recording;
  }
}

}  // namespace
}  // namespace cgdebug::recording
