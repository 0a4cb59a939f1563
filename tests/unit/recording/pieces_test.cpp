// A writer that gathers writes whole pieces of 64 KiB, so that a record may be in the file in part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/recording/verify_recording.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::recording {
namespace {

using testing_support::AppendAt;
using testing_support::FloatSlot;
using testing_support::SessionOf;
using testing_support::SnapshotAt;
using testing_support::ValuesAt;
using testing_support::ValuesOf;

// Numbers of elements, one slot each: below a piece, around one, several, and page aligned.
const std::vector<std::uint64_t> kElements = {5, 9'000, 16'380, 16'384, 50'001, 70'000};

class RecordingInPieces : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = RecordingWriter::Open(path_, {.durability = Durability::kNone, .gather = true});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    writer_ = *std::move(opened);
    const auto session = writer_->AddSession(SessionOf());
    for (std::uint32_t slot = 0; slot < kElements.size(); ++slot) {
      const std::string name = "probe" + std::to_string(slot);
      ASSERT_EQ(writer_->AddSlot(FloatSlot(*session, name, kElements[slot], slot)).value(), slot);
    }
  }

  // Checks that everything readable is right; returns how many snapshots that is.
  std::uint64_t CountReadable() {
    const auto reader = RecordingReader::Open(path_, {});
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    std::uint64_t count = 0;
    for (const Slot& slot : (*reader)->slots()) {
      for (const SnapshotRef& ref : (*reader)->Snapshots(slot.id)) {
        const auto values = ValuesOf(**reader, ref);
        EXPECT_TRUE(values.ok()) << values.error().message;
        EXPECT_EQ(*values, ValuesAt(slot.id, ref.replay, kElements[slot.id]));
        ++count;
      }
    }
    EXPECT_TRUE((*reader)->damage().empty()) << (*reader)->damage().front().what;
    return count;
  }

  testing_support::TempDir dir_;
  std::string path_ = dir_ / "a.cgrec";
  std::unique_ptr<RecordingWriter> writer_;
};

TEST_F(RecordingInPieces, ARecordThatIsThereInPartIsNotThereYet) {
  std::uint64_t appended = 0;
  std::uint64_t readable = 0;
  for (std::uint64_t replay = 1; replay <= 5; ++replay) {
    for (std::uint32_t slot = 0; slot < kElements.size(); ++slot) {
      AppendAt(writer_.get(), slot, replay, kElements[slot]);
      ++appended;
      const std::uint64_t now = CountReadable();
      EXPECT_GE(now, readable);
      EXPECT_LE(now, appended);
      readable = now;
    }
  }
  EXPECT_GT(readable, 20u) << "pieces are written without being asked for";
  ASSERT_TRUE(writer_->Flush().ok());
  EXPECT_EQ(CountReadable(), appended);
  ASSERT_TRUE(writer_->Close(StopReason::kRequested).ok());
  EXPECT_EQ(CountReadable(), appended);
  EXPECT_TRUE(recording::VerifyRecording(path_).value().empty());
}

// Cut off by the limit of a file's size at places all over a replay.
TEST_F(RecordingInPieces, AWriteThatFailsLeavesTheRecordsBeforeIt) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::uint64_t failed = 0;
  for (std::uint64_t room = 1'000; room < 700'000; room += 31'111) {
    path_ = dir_ / std::to_string(room);
    SetUp();
    AppendAt(writer_.get(), 0, 1, kElements[0]);  // sets space aside
    ASSERT_TRUE(writer_->Flush().ok());
    rlimit tight = before;
    tight.rlim_cur = writer_->status().bytes + room;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
    for (std::uint32_t slot = 0; slot < kElements.size(); ++slot) {
      const auto values = ValuesAt(slot, 2, kElements[slot]);
      [[maybe_unused]] const auto refused =
          writer_->Append(SnapshotAt(slot, 2, values), std::as_bytes(std::span(values)));
    }
    [[maybe_unused]] const auto flushed = writer_->Flush();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    const WriterStatus status = writer_->status();
    EXPECT_EQ(status.snapshots + status.refused, 1 + kElements.size()) << room;
    EXPECT_EQ(CountReadable(), status.snapshots) << room;
    if (status.stopped != StopReason::kNone) ++failed;
    writer_.reset();
    EXPECT_EQ(CountReadable(), status.snapshots) << room;
  }
  EXPECT_GT(failed, 15u);
}

// A loss that cannot be written would otherwise be a hole in a recording that goes on.
TEST_F(RecordingInPieces, AWriteThatFailsEndsItWhateverItWasOf) {
  writer_.reset();
  path_ = dir_ / "b.cgrec";
  writer_ = *RecordingWriter::Open(path_, {.durability = Durability::kNone});
  const auto session = writer_->AddSession(SessionOf());
  ASSERT_TRUE(writer_->AddSlot(FloatSlot(*session, "x", kElements[0], 0)).ok());
  AppendAt(writer_.get(), 0, 1, kElements[0]);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = writer_->status().bytes;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  Loss loss;
  loss.count = 1;
  loss.first_ordinal = loss.last_ordinal = 2;
  EXPECT_FALSE(writer_->AddLoss(loss).ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(writer_->status().stopped, StopReason::kWriteError);
  writer_.reset();
  EXPECT_EQ(CountReadable(), 1u);
  EXPECT_FALSE((*RecordingReader::Open(path_, {}))->complete());
}

// A pipe in place of the file refuses fdatasync(). Then the file is put back and accepts it, as
// Linux does after it has reported a failure once.
TEST_F(RecordingInPieces, WhatTheDiskRefusedOnceIsNotCalledDurable) {
  writer_.reset();
  path_ = dir_ / "b.cgrec";
  writer_ = *RecordingWriter::Open(path_, {.commit_interval = std::chrono::hours(1)});
  const auto session = writer_->AddSession(SessionOf());
  ASSERT_TRUE(writer_->AddSlot(FloatSlot(*session, "x", kElements[0], 0)).ok());
  AppendAt(writer_.get(), 0, 1, kElements[0]);
  int segment = -1;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(fd, gone).extension() == ".cgd") {
      segment = std::stoi(fd.path().filename());
    }
  }
  ASSERT_GE(segment, 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int file = dup(segment);
  ASSERT_EQ(dup2(ends[1], segment), segment);
  EXPECT_FALSE(writer_->Commit().ok());
  ASSERT_EQ(dup2(file, segment), segment);
  EXPECT_FALSE(writer_->Close(StopReason::kRequested).ok());
  EXPECT_EQ(writer_->status().durable_snapshots, 0u);
  for (const int fd : {file, ends[0], ends[1]}) close(fd);
}

}  // namespace
}  // namespace cgdebug::recording
