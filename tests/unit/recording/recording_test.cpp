#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/verify_recording.h"
#include "tests/support/child_process.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::recording {
namespace {

using testing_support::AppendAt;
using testing_support::FloatSlot;
using testing_support::SessionOf;
using testing_support::ValuesAt;
using testing_support::ValuesOf;

class Recording : public testing::Test {
 protected:
  std::unique_ptr<RecordingWriter> Write(const WriterOptions& options = {}) {
    auto writer = RecordingWriter::Open(path_, options);
    EXPECT_TRUE(writer.ok()) << writer.error().message;
    return *std::move(writer);
  }
  std::unique_ptr<RecordingReader> Read(const RecordingReader::Options& options = {}) {
    auto reader = RecordingReader::Open(path_, options);
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return *std::move(reader);
  }
  // Two probes of one session, replays 1 to `replays` of each.
  void WriteTwoProbes(RecordingWriter* writer, std::uint64_t replays) {
    const auto session = writer->AddSession(SessionOf());
    ASSERT_TRUE(session.ok());
    ASSERT_EQ(writer->AddSlot(FloatSlot(*session, "small", 8, 0)).value(), 0u);
    ASSERT_EQ(writer->AddSlot(FloatSlot(*session, "large", 2048, 1)).value(), 1u);
    for (std::uint64_t replay = 1; replay <= replays; ++replay) {
      AppendAt(writer, 0, replay, 8);
      AppendAt(writer, 1, replay, 2048);
    }
  }
  // Expects every value to be there and right.
  void ExpectTwoProbes(const RecordingReader& reader, std::uint64_t replays) {
    ASSERT_EQ(reader.slots().size(), 2u);
    for (const auto& [slot, elements] : {std::pair(0u, 8u), std::pair(1u, 2048u)}) {
      EXPECT_EQ(reader.snapshot_count(slot), replays);
      std::uint64_t replay = 0;
      for (const SnapshotRef& ref : reader.Snapshots(slot)) {
        EXPECT_EQ(ref.replay, ++replay);
        const auto values = ValuesOf(reader, ref);
        ASSERT_TRUE(values.ok()) << values.error().message;
        ASSERT_EQ(*values, ValuesAt(slot, replay, elements));
      }
      EXPECT_EQ(replay, replays);
    }
  }

  testing_support::TempDir dir_;
  std::string path_ = dir_ / "a.cgrec";
};

// Of this process, also from the cache of the system.
std::uint64_t BytesReadSoFar() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::uint64_t bytes = 0;
  io >> name >> bytes;  // rchar
  return bytes;
}

TEST_F(Recording, ReadingProbeAfterProbeReadsNotMuchMoreThanTheirRecords) {
  constexpr std::uint64_t kProbes = 400, kReplays = 20;
  auto writer = Write();
  const auto session = writer->AddSession(SessionOf());
  for (std::uint32_t i = 0; i < kProbes; ++i) {
    ASSERT_TRUE(writer->AddSlot(FloatSlot(*session, "p" + std::to_string(i), 8, i)).ok());
  }
  for (std::uint64_t replay = 1; replay <= kReplays; ++replay) {
    for (std::uint32_t i = 0; i < kProbes; ++i) AppendAt(writer.get(), i, replay, 8);
  }
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  const std::uint64_t before = BytesReadSoFar();
  if (before == 0) GTEST_SKIP() << "this system does not count what is read";
  for (std::uint32_t i = 0; i < kProbes; ++i) {
    for (const SnapshotRef& ref : reader->Snapshots(i)) ASSERT_TRUE(reader->Read(ref).ok());
  }
  EXPECT_LT(BytesReadSoFar() - before, kProbes * kReplays * 2 * 4096);
}

TEST_F(Recording, GivesBackWhatWasWritten) {
  auto writer = Write();
  WriteTwoProbes(writer.get(), 20);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  ExpectTwoProbes(*reader, 20);
  EXPECT_TRUE(reader->complete());
  EXPECT_EQ(reader->stop_reason(), StopReason::kRequested);
  EXPECT_EQ(reader->sessions().at(0).label, "train-1");
  EXPECT_EQ(reader->slots().at(1).probe, "large");
  EXPECT_EQ(reader->slots().at(1).shape, std::vector<std::uint64_t>{2048});
  EXPECT_EQ(reader->last_replay(), 20u);
  EXPECT_TRUE(reader->Find(0, 7).has_value());
  const auto ref = reader->Find(1, 7);
  ASSERT_TRUE(ref.has_value());
  const auto snapshot = reader->Read(*ref);
  ASSERT_TRUE(snapshot.ok());
  EXPECT_EQ(snapshot->step, 3);
  EXPECT_EQ(snapshot->stats.count, 2048u);
  EXPECT_EQ(snapshot->stats.min, 1007.0);
  EXPECT_FALSE(reader->Find(1, 21).has_value());
  EXPECT_TRUE(recording::VerifyRecording(reader->directory()).value().empty());
}

TEST_F(Recording, LargePayloadsLieOnPagesOfTheFile) {
  constexpr std::uint64_t kElements = layout::kLargePayloadBytes / sizeof(float);
  auto writer = Write();
  const auto session = writer->AddSession(SessionOf());
  ASSERT_EQ(writer->AddSlot(FloatSlot(*session, "large", kElements, 0)).value(), 0u);
  AppendAt(writer.get(), 0, 1, kElements);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  const auto payload = reader->MapPayload(*reader->Find(0, 1));
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(payload->bytes.data()) % 4096, 0u);
}

TEST_F(Recording, CanBeReadWhileItIsWritten) {
  auto writer = Write();
  WriteTwoProbes(writer.get(), 3);
  const auto reader = Read();
  ExpectTwoProbes(*reader, 3);
  EXPECT_TRUE(reader->being_written());
  EXPECT_FALSE(reader->complete());
  AppendAt(writer.get(), 0, 4, 8);
  AppendAt(writer.get(), 1, 4, 2048);
  ASSERT_TRUE(reader->Refresh().ok());
  ExpectTwoProbes(*reader, 4);
  ASSERT_TRUE(writer->Close(StopReason::kReached).ok());
  ASSERT_TRUE(reader->Refresh().ok());
  EXPECT_TRUE(reader->complete());
  EXPECT_TRUE(reader->damage().empty());
}

TEST_F(Recording, RollsIntoSegmentsThatCanEachBeReadAlone) {
  WriterOptions options;
  options.roll_bytes = 200'000;
  auto writer = Write(options);
  WriteTwoProbes(writer.get(), 100);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  {
    const auto reader = Read();
    EXPECT_GT(reader->segment_count(), 3u);
    ExpectTwoProbes(*reader, 100);
    EXPECT_TRUE(reader->complete());
    EXPECT_TRUE(recording::VerifyRecording(reader->directory()).value().empty());
  }
  ExpectTwoProbes(*Read({.trust_index = false}), 100);
  std::filesystem::remove(path_ + "/segment-000001.cgd");
  const auto rest = Read();
  EXPECT_EQ(rest->slots().size(), 2u);
  EXPECT_GT(rest->snapshot_count(), 0u);
  EXPECT_FALSE(rest->complete());
  ASSERT_FALSE(rest->damage().empty());
  EXPECT_GT(rest->damage().front().missing_records, 0u);
  EXPECT_FALSE(rest->losses().empty());
  EXPECT_EQ(rest->losses().front().cause, LossCause::kDamaged);
  EXPECT_EQ(rest->losses().front().first_ordinal, 1u);
}

TEST_F(Recording, AWriterGoesOnWhereAKilledOneStoppedWithoutDuplicates) {
  {
    auto writer = Write();
    WriteTwoProbes(writer.get(), 5);
    ASSERT_TRUE(writer->Close(StopReason::kDaemonStopped).ok());
  }
  // Killed in the middle of a record.
  std::filesystem::resize_file(path_ + "/segment-000001.cgd",
                               std::filesystem::file_size(path_ + "/segment-000001.cgd") - 4000);
  const std::uint64_t kept = Read()->snapshot_count(1);
  ASSERT_LT(kept, 5u);
  auto writer = Write();
  EXPECT_EQ(writer->last(1).ordinal, kept);
  WriteTwoProbes(writer.get(), 9);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  ExpectTwoProbes(*reader, 9);
  EXPECT_TRUE(reader->complete());
  EXPECT_EQ(reader->segment_count(), 2u);
}

TEST_F(Recording, AnUnfinishedOneIsOpenedByItsIndexesAsWellAsByWalkingThroughIt) {
  WriterOptions options;
  options.index_bytes = 40'000;
  auto writer = Write(options);
  WriteTwoProbes(writer.get(), 30);
  for (const bool trust_index : {true, false}) {
    const auto reader = Read({.trust_index = trust_index});
    ExpectTwoProbes(*reader, 30);
    EXPECT_EQ(reader->slots().size(), 2u);
    EXPECT_TRUE(reader->damage().empty());
    EXPECT_EQ(reader->last_number(), writer->status().records);
  }
  // A note that leads nowhere does no harm.
  std::ofstream(path_ + "/lock", std::ios::in | std::ios::binary).seekp(9) << "x";
  ExpectTwoProbes(*Read(), 30);
}

TEST_F(Recording, AWriterRefusesWhatItCannotGoOnWith) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ + "/segment-000001.cgd") << "no recording";
  const auto writer = RecordingWriter::Open(path_, {});
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(writer.error().message, testing::HasSubstr("segment-000001.cgd"));
}

TEST_F(Recording, TwoWritersNeverShareADirectory) {
  auto writer = Write();
  const auto second = RecordingWriter::Open(path_, {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, testing::HasSubstr("another process"));
}

TEST_F(Recording, LossesAreExact) {
  auto writer = Write();
  WriteTwoProbes(writer.get(), 2);
  Loss loss;
  loss.slot = 1;
  loss.count = loss.last_ordinal = 5;
  loss.first_ordinal = 3;
  loss.count = 3;
  loss.after_replay = 2;
  loss.before_replay = 6;
  ASSERT_TRUE(writer->AddLoss(loss).ok());
  AppendAt(writer.get(), 1, 6, 2048);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].count, 3u);
  EXPECT_FALSE(reader->complete());
}

TEST_F(Recording, StopsAtItsSizeAndStaysWhole) {
  WriterOptions options;
  options.max_bytes = 100'000;
  auto writer = Write(options);
  const auto session = writer->AddSession(SessionOf());
  ASSERT_EQ(writer->AddSlot(FloatSlot(*session, "x", 2048, 0)).value(), 0u);
  std::uint64_t written = 0;
  for (std::uint64_t replay = 1; replay <= 30; ++replay) {
    const auto values = ValuesAt(0, replay, 2048);
    written += writer
                   ->Append(testing_support::SnapshotAt(0, replay, values),
                            std::as_bytes(std::span(values)))
                   .ok();
  }
  EXPECT_EQ(writer->status().stopped, StopReason::kMaxSize);
  EXPECT_EQ(writer->status().refused, 30 - written);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  EXPECT_EQ(reader->snapshot_count(0), written);
  EXPECT_EQ(reader->stop_reason(), StopReason::kMaxSize);
  EXPECT_FALSE(reader->complete());
  EXPECT_LE(reader->bytes(), 100'000u);
}

// On a file system of its own, which only root can make.
class RecordingOnASmallDisk : public Recording {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(path_);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=8m") != 0) {
      GTEST_SKIP() << "no mount namespace here";
    }
  }
  void TearDown() override { umount2(path_.c_str(), MNT_DETACH); }
  // Appends until the writer refuses; returns how many it took.
  std::uint64_t Fill(RecordingWriter* writer) {
    const auto session = writer->AddSession(SessionOf());
    if (!session.ok() || !writer->AddSlot(FloatSlot(*session, "x", 2048, 0)).ok()) return 0;
    for (std::uint64_t replay = 1; replay <= 10'000; ++replay) {
      const auto values = ValuesAt(0, replay, 2048);
      if (!writer
               ->Append(testing_support::SnapshotAt(0, replay, values),
                        std::as_bytes(std::span(values)))
               .ok()) {
        return replay - 1;
      }
    }
    return 10'000;
  }
};

TEST_F(RecordingOnASmallDisk, StopsWhenItIsFullAndStaysWhole) {
  WriterOptions options;
  options.min_free_bytes = 0;
  auto writer = Write(options);
  const std::uint64_t written = Fill(writer.get());
  EXPECT_GT(written, 300u);
  EXPECT_LT(written, 1024u);
  EXPECT_EQ(writer->status().stopped, StopReason::kDiskFull);
  EXPECT_THAT(writer->status().error, testing::HasSubstr("No space left"));
  EXPECT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  EXPECT_EQ(reader->snapshot_count(0), written);
  EXPECT_TRUE(reader->closed());
  EXPECT_EQ(reader->stop_reason(), StopReason::kDiskFull);
  EXPECT_FALSE(reader->complete());
  EXPECT_TRUE(recording::VerifyRecording(reader->directory()).value().empty());
}

TEST_F(RecordingOnASmallDisk, LeavesAsMuchFreeAsItWasTold) {
  WriterOptions options;
  options.min_free_bytes = 4u << 20;
  auto writer = Write(options);
  EXPECT_LT(Fill(writer.get()), 600u);
  EXPECT_EQ(writer->status().stopped, StopReason::kDiskFull);
  EXPECT_FALSE(RecordingWriter::Open(path_ + "/b", {.min_free_bytes = 1u << 30}).ok());
  EXPECT_GE(std::filesystem::space(path_).available, 3u << 20);
  EXPECT_TRUE(writer->Close(StopReason::kRequested).ok());
  EXPECT_TRUE(Read()->closed());
}

TEST_F(Recording, WhatWasGatheredIsInTheFileAfterAFlush) {
  auto writer = Write({.durability = Durability::kNone, .gather = true});
  WriteTwoProbes(writer.get(), 3);
  EXPECT_EQ(Read()->snapshot_count(), 0u);
  ASSERT_TRUE(writer->Flush().ok());
  ExpectTwoProbes(*Read(), 3);
  AppendAt(writer.get(), 0, 4, 8);
  AppendAt(writer.get(), 1, 4, 2048);
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(writer->status().durable_snapshots, 8u);
  ExpectTwoProbes(*Read(), 4);
  AppendAt(writer.get(), 0, 5, 8);
  AppendAt(writer.get(), 1, 5, 2048);
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  ExpectTwoProbes(*reader, 5);
  EXPECT_TRUE(reader->complete());
  EXPECT_TRUE(recording::VerifyRecording(reader->directory()).value().empty());
}

TEST_F(Recording, AFlushThatFailsCountsWhatItLost) {
  auto writer = Write({.durability = Durability::kNone, .gather = true});
  WriteTwoProbes(writer.get(), 3);
  ASSERT_TRUE(writer->Flush().ok());
  for (std::uint64_t replay = 4; replay <= 8; ++replay) {
    AppendAt(writer.get(), 0, replay, 8);
  }
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = writer->status().bytes - 100;  // in the middle of them
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_FALSE(writer->Flush().ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(writer->status().stopped, StopReason::kWriteError);
  EXPECT_EQ(writer->status().snapshots, 6u);
  EXPECT_EQ(writer->status().refused, 5u);
  writer.reset();
  const auto reader = Read();
  ExpectTwoProbes(*reader, 3);
  EXPECT_FALSE(reader->complete());
  EXPECT_TRUE(reader->damage().empty());
}

TEST_F(Recording, CommitsSayWhatIsOnTheDisk) {
  WriterOptions options;
  options.durability = Durability::kEach;
  auto writer = Write(options);
  WriteTwoProbes(writer.get(), 3);
  EXPECT_EQ(writer->status().durable_snapshots, 6u);
  const auto reader = Read();
  EXPECT_EQ(reader->durable_number() + 1, reader->last_number());
}

TEST_F(Recording, OtherFilesAreNotTouched) {
  std::filesystem::create_directories(path_);
  std::ofstream(path_ + "/notes.txt") << "mine";
  EXPECT_FALSE(RecordingWriter::Open(path_, {}).ok());
  EXPECT_FALSE(RecordingReader::Open(path_).ok());
}

TEST_F(Recording, AFolderThatCannotBeReadIsRefusedWithTheReason) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer needs descriptors itself";
#endif
  std::filesystem::create_directories(path_);
  const int code = test::InChild([this] {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    const auto writer = RecordingWriter::Open(path_, {});
    const std::string expected = "cannot read " + path_ + ": Too many open files";
    return !writer.ok() && writer.error().message == expected ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(Recording, APipeInPlaceOfAFileIsRefusedAtOnce) {
  const std::string segment = path_ + "/segment-000001.cgd", lock = path_ + "/lock";
  std::filesystem::create_directory(path_);
  ASSERT_EQ(mkfifo(segment.c_str(), 0600), 0);
  EXPECT_EQ(RecordingReader::Open(path_).error().message, segment + " is not a regular file");
  EXPECT_EQ(RecordingWriter::Open(path_, {}).error().message, segment + " is not a regular file");
  std::filesystem::remove_all(path_);
  WriteTwoProbes(Write().get(), 2);
  std::filesystem::remove(lock);
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  ExpectTwoProbes(*Read(), 2);
  EXPECT_FALSE(Read()->being_written());
  EXPECT_EQ(RecordingWriter::Open(path_, {}).error().message, lock + " is not a regular file");
}

TEST_F(Recording, StatisticsMayComeWithoutValues) {
  auto writer = Write();
  const auto session = writer->AddSession(SessionOf());
  ASSERT_EQ(writer->AddSlot(FloatSlot(*session, "x", 4, 0)).value(), 0u);
  Snapshot snapshot = testing_support::SnapshotAt(0, 1, {1, 2, 3, 4});
  snapshot.stats_only = true;
  snapshot.payload_hash = 77;
  ASSERT_TRUE(writer->Append(snapshot, {}).ok());
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const auto reader = Read();
  const auto read = reader->Read(*reader->Find(0, 1));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->payload_hash, 77u);
  EXPECT_EQ(read->stats.max, 4.0);
  EXPECT_FALSE(reader->ReadPayload(*reader->Find(0, 1)).ok());
}

TEST_F(Recording, ValuesThatAreGoneAreNoLostSnapshots) {
  auto writer = Write();
  WriteTwoProbes(writer.get(), 2);
  for (const LossCause cause : {LossCause::kValuesGone, LossCause::kOverwritten}) {
    const Loss loss = {
        .slot = 1, .cause = cause, .count = 2, .after_replay = 2, .before_replay = 5};
    ASSERT_TRUE(writer->AddLoss(loss).ok());
  }
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  const Account account = Read()->AccountOf(1);
  EXPECT_EQ(account.without_values, 2u);
  EXPECT_EQ(account.lost_count(), 2u);
  EXPECT_EQ(account.kept, 2u);
  EXPECT_EQ(account.produced, 4u);
}

}  // namespace
}  // namespace cgdebug::recording
