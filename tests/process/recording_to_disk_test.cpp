// Recordings that a job asks for with TensorRecord(to="disk"), by whichever daemon is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/verify_recording.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/pipe_reader.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using recording::RecordingReader;
using recording::StopReason;

// In ./runs.
class RecordingToDisk : public testing::Test {
 protected:
  RecordingToDisk() {
    std::filesystem::current_path(dir_.path());
    setenv("CGDEBUG_DIR", (dir_ / "runs").c_str(), 1);  // the daemon's own, for jobs that are dead
  }
  ~RecordingToDisk() override {
    unsetenv("CGDEBUG_DIR");
    std::filesystem::current_path("/");
  }

  std::string OnlyRecording() {
    std::string found;
    std::error_code none_yet;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "runs", none_yet)) {
      EXPECT_EQ(found, "");
      found = entry.path();
    }
    return found;
  }
  // Every snapshot that the job made is there once and right, or counted in a loss.
  void ExpectExact(const RecordingReader& reader, std::uint64_t produced, std::uint32_t slot = 0) {
    std::uint64_t accounted = 0;
    for (const auto& loss : reader.losses()) accounted += loss.slot == slot ? loss.count : 0;
    std::uint64_t last = 0;
    for (const auto& ref : reader.Snapshots(slot)) {
      ASSERT_GT(ref.ordinal, last);
      last = ref.ordinal;
      const auto values = testing_support::ValuesOf(reader, ref);
      ASSERT_TRUE(values.ok()) << values.error().message;
      ASSERT_EQ(values->front(), static_cast<float>(ref.replay));
      ++accounted;
    }
    EXPECT_EQ(accounted, produced);
    EXPECT_THAT(reader.damage(), testing::IsEmpty());
  }

  testing_support::TempDir dir_;
};

TEST_F(RecordingToDisk, HoldsEverythingOfAJobThatWaits) {
  ProducerProcess job({{.name = "a",
                        .capacity = 4,
                        .record_every = 1,
                        .to_disk = true,
                        .policy = layout::Policy::kWait,
                        .wait_deadline_ms = 600'000}});
  DaemonProcess daemon(dir_);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 0));
  job.Write(0, 500);
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] { return daemon.Status().recordings().empty(); }));
  const auto reader = RecordingReader::Open(OnlyRecording());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->snapshot_count(0), 500u);
  EXPECT_TRUE((*reader)->complete());
  ExpectExact(**reader, 500);
}

// A dead job holds no lock that would prove its identity.
TEST_F(RecordingToDisk, ARecordingOfAJobThatNoDaemonSawAliveLiesInTheDaemonsFolder) {
  std::filesystem::create_directory(dir_ / "elsewhere");
  std::filesystem::current_path(dir_ / "elsewhere");
  ProducerProcess job({{.name = "a", .capacity = 8, .record_every = 1, .to_disk = true}});
  job.Write(0, 20);
  job.Kill();
  std::filesystem::current_path("/");
  DaemonProcess daemon(dir_);
  ASSERT_TRUE(WaitUntil([&] { return !OnlyRecording().empty(); }));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.WaitForExit(), 0);
  const auto reader = RecordingReader::Open(OnlyRecording());
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->snapshot_count(0), 8u);
  ExpectExact(**reader, 20);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "elsewhere/runs"));
}

// A container that shares /dev/shm may do this: its segment contradicts the kernel.
TEST_F(RecordingToDisk, AJobThatPosesAsAnotherProcessGetsNeitherItsTerminalNorAPathOfItsChoice) {
  PipeReader terminal;
  std::filesystem::create_directory(dir_ / "elsewhere");
  std::filesystem::current_path(dir_ / "elsewhere");
  ProducerProcess victim({Recording("v")}, terminal.write_fd());
  ProducerProcess job(
      {{.name = "a", .capacity = 8, .print_every = 1, .record_every = 1, .to_disk = true}});
  layout::SegmentHeader header = {};
  std::fstream from(ring::ShmPath(victim.segment()), std::ios::in | std::ios::binary);
  from.read(reinterpret_cast<char*>(&header), sizeof(header));
  std::fstream to(ring::ShmPath(job.segment()), std::ios::in | std::ios::out | std::ios::binary);
  to.seekp(offsetof(layout::SegmentHeader, pid));
  const std::size_t bytes = offsetof(layout::SegmentHeader, created_ns) -
                            offsetof(layout::SegmentHeader, pid);  // pid, namespace, start time
  to.write(reinterpret_cast<const char*>(&header) + offsetof(layout::SegmentHeader, pid),
           static_cast<std::streamsize>(bytes));
  to.close();
  DaemonProcess daemon(dir_);
  job.Write(0, 3);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 3));
  ASSERT_TRUE(WaitUntil([&] { return !OnlyRecording().empty(); }));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "elsewhere/runs"));
  EXPECT_EQ(terminal.text(), "");
}

// The probe also prints, so most of what is lost was never wanted on the disk.
class RecordingEveryTenth : public RecordingToDisk {
 protected:
  static SlotSpec Spec(std::uint32_t capacity) {
    return {
        .name = "a", .capacity = capacity, .print_every = 1, .record_every = 10, .to_disk = true};
  }
  // The recording of a job that is gone.
  std::unique_ptr<RecordingReader> ReadAfter(DaemonProcess& daemon, const ProducerProcess& job) {
    EXPECT_TRUE(WaitUntil([&] {
      const auto session = daemon.Session(job.key());
      return session && session->state() != v1::Session::ALIVE && !OnlyRecording().empty() &&
             daemon.Status().recordings().empty();
    }));
    auto reader = RecordingReader::Open(OnlyRecording());
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return *std::move(reader);
  }
  static std::uint64_t Lost(const RecordingReader& reader) {
    std::uint64_t lost = 0;
    for (const auto& loss : reader.losses()) lost += loss.count;
    return lost;
  }
};

TEST_F(RecordingEveryTenth, CountsAsLostOnlyWhatWasWanted) {
  ProducerProcess job({Spec(15)});
  job.Write(0, 100);
  job.Kill();
  DaemonProcess daemon(dir_);
  const auto reader = ReadAfter(daemon, job);
  ASSERT_EQ(reader->snapshot_count(0), 1u);
  EXPECT_EQ(reader->Last(0)->replay, 91u);
  EXPECT_EQ(Lost(*reader), 9u);
}

TEST_F(RecordingEveryTenth, IsCompleteWhenNothingWantedWasLost) {
  ProducerProcess job({Spec(16)});
  DaemonProcess daemon(dir_);
  job.Write(0, 12);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 12));
  daemon.Stop();
  job.Write(0, 17);  // replay 13 is overwritten
  daemon.Signal(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] {
    const auto probe = daemon.Probe(job.key(), "a");
    return probe && probe->counters().consumed() + probe->counters().lost_overwritten() == 29;
  }));
  EXPECT_GT(daemon.Probe(job.key(), "a")->counters().lost_overwritten(), 0u);
  job.ExitCleanly();
  const auto reader = ReadAfter(daemon, job);
  EXPECT_EQ(reader->snapshot_count(0), 3u);
  EXPECT_TRUE(reader->complete());
}

TEST_F(RecordingEveryTenth, KnowsWhetherWhatWasHalfWrittenWasWanted) {
  for (const std::uint32_t whole : {9u, 10u}) {
    ProducerProcess job({Spec(16)});
    job.Write(0, whole);
    job.BeginOnly(0);
    job.Kill();
    {
      DaemonProcess daemon(dir_);
      const auto reader = ReadAfter(daemon, job);
      EXPECT_EQ(reader->snapshot_count(0), 1u);
      EXPECT_EQ(Lost(*reader), whole == 10 ? 1u : 0u);
    }
    std::filesystem::remove_all(dir_ / "runs");  // nobody writes there any more
  }
}

TEST_F(RecordingEveryTenth, DoesNotLoseWhatAnEarlierDaemonHadNotWanted) {
  ProducerProcess job({Spec(4)});
  {
    DaemonProcess daemon(dir_);
    job.Write(0, 1);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 1));
    for (std::uint64_t replay = 2; replay <= 9; ++replay) {
      job.Write(0, 1);
      ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", replay));
    }
    daemon.Kill();
  }
  job.Write(0, 3);
  job.ExitCleanly();
  DaemonProcess daemon(dir_);
  const auto reader = ReadAfter(daemon, job);
  EXPECT_EQ(reader->snapshot_count(0), 2u);
  EXPECT_EQ(Lost(*reader), 0u);
  EXPECT_TRUE(reader->complete());
}

// CGDEBUG_TEST_KILLS=200 for the whole exercise.
TEST_F(RecordingToDisk, SurvivesDaemonsThatAreKilledAtAnyTime) {
  const char* wanted = std::getenv("CGDEBUG_TEST_KILLS");
  const int kills = wanted == nullptr ? 20 : std::atoi(wanted);
  SlotSpec spec = {.name = "a",
                   .elements = 2048,
                   .capacity = 8,
                   .record_every = 1,
                   .to_disk = true,
                   .policy = layout::Policy::kWait,
                   .wait_deadline_ms = 20};
  SlotSpec small = spec;
  small.name = "b";
  small.elements = 8;
  ProducerProcess job({spec, small});
  std::atomic<bool> stop = false;
  std::uint64_t produced = 0;  // of each
  std::thread load([&] {
    for (; !stop; produced += 16) {
      job.Write(0, 16);
      job.Write(1, 16);
    }
  });
  std::mt19937 random(7);
  std::uint64_t durable = 0;
  for (int i = 0; i < kills; ++i) {
    DaemonProcess daemon(dir_);
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 60'000);
    do {
      const v1::StatusReply status = daemon.Status();
      for (const v1::Recording& recording : status.recordings()) {
        EXPECT_GE(recording.durable_snapshots(), i == 0 ? 0 : durable);
        durable = std::max(durable, recording.durable_snapshots());
      }
    } while (std::chrono::steady_clock::now() < end);
    daemon.Kill();
  }
  stop = true;
  load.join();
  job.ExitCleanly();  // with nobody there to see it
  DaemonProcess daemon(dir_);
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(job.key());
    return session && session->state() == v1::Session::EXITED;
  }));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.WaitForExit(), 0);
  const auto reader = RecordingReader::Open(OnlyRecording());
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_GE((*reader)->snapshot_count(), durable);
  EXPECT_THAT(recording::VerifyRecording((*reader)->directory()).value(), testing::IsEmpty());
  ExpectExact(**reader, produced, 0);
  ExpectExact(**reader, produced, 1);
  RecordProperty("snapshots", static_cast<int>((*reader)->snapshot_count()));
}

TEST_F(RecordingToDisk, EndsAtTheSizeThatTheDaemonAllowsAndTheJobGoesOn) {
  ProducerProcess job({{.name = "a",
                        .elements = 65536,  // 256 KiB
                        .capacity = 4,
                        .record_every = 1,
                        .to_disk = true,
                        .policy = layout::Policy::kWait,
                        .wait_deadline_ms = 600'000}});
  DaemonProcess daemon(dir_, {"--max-disk", "3M", "--roll-size", "1M"});
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 0));
  job.Write(0, 30);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 30));
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] {
    const auto status = daemon.Status();
    return status.recordings_size() == 1 && status.recordings(0).state() == "size limit reached";
  }));
  const auto reader = RecordingReader::Open(OnlyRecording());
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->stop_reason(), StopReason::kMaxSize);
  EXPECT_GE((*reader)->segment_count(), 3u);
  EXPECT_GE((*reader)->snapshot_count(0), 8u);
  EXPECT_LE((*reader)->bytes(), 3u << 20);
  EXPECT_FALSE((*reader)->complete());
}

TEST_F(RecordingToDisk, LeavesTheDiskAsFreeAsTheDaemonWasTold) {
#if defined(CGDEBUG_SANITIZED_THREAD)
  GTEST_SKIP() << "100 MB take ThreadSanitizer longer than the deadline";
#endif
  constexpr std::uint64_t kMiB = 1 << 20;
  PipeReader terminal;
  ProducerProcess job(
      {{.name = "a", .elements = 4 * kMiB, .capacity = 2, .record_every = 1, .to_disk = true}},
      terminal.write_fd());
  const std::uint64_t free_mib = std::filesystem::space(dir_ / ".").available / kMiB;
  DaemonProcess daemon(dir_, {"--min-free-disk", std::to_string(free_mib - 100) + "M"});
  v1::Recording ended;
  ASSERT_TRUE(WaitUntil([&] {
    job.Write(0, 1);  // 16 MiB
    auto client = daemon.Connect();
    const auto list = client.Ask<v1::RecordListReply>(v1::RecordListRequest());
    if (list.ok() && list->recordings_size() == 1) ended = list->recordings(0);
    return ended.state() == "disk full";
  }));
  EXPECT_THAT(ended.error(), testing::HasSubstr("--min-free-disk"));
  ASSERT_EQ(daemon.Status().recordings_size(), 1);
  EXPECT_EQ(daemon.Status().recordings(0).state(), "disk full");
  const std::string said = "[cgdebug] nothing more of this job is recorded into ";
  EXPECT_TRUE(terminal.WaitFor(said)) << terminal.text();
  EXPECT_THAT(terminal.text(), testing::HasSubstr("--min-free-disk"));
  EXPECT_EQ(CountOf(terminal.text(), said), 1u);
}

TEST_F(RecordingToDisk, BeginsNothingWhereLessIsFreeThanTheDaemonWasTold) {
  PipeReader terminal;
  ProducerProcess job({{.name = "a", .capacity = 4, .record_every = 1, .to_disk = true}},
                      terminal.write_fd());
  DaemonProcess daemon(dir_, {"--min-free-disk", "99%"});
  job.Write(0, 1);
  EXPECT_TRUE(terminal.WaitFor("[cgdebug] this job is not recorded: ")) << terminal.text();
  EXPECT_THAT(terminal.text(), testing::HasSubstr("--min-free-disk"));
}

TEST_F(RecordingToDisk, AJobThatCannotBeRecordedIsToldSo) {
  std::ofstream(dir_ / "runs") << "a file where the folder would be";
  PipeReader terminal;
  ProducerProcess job({{.name = "a", .capacity = 4, .record_every = 1, .to_disk = true}},
                      terminal.write_fd());
  DaemonProcess daemon(dir_);
  job.Write(0, 1);
  EXPECT_TRUE(terminal.WaitFor("[cgdebug] this job is not recorded: ")) << terminal.text();
  const v1::StatusReply status = daemon.Status();
  ASSERT_EQ(status.sessions_size(), 1);
  ASSERT_EQ(status.sessions(0).not_seen_size(), 1);
  const v1::NotSeen& account = status.sessions(0).not_seen(0);
  EXPECT_EQ(account.kind(), static_cast<std::uint32_t>(layout::NotSeenKind::kNotRecorded));
  EXPECT_THAT(account.reason(), testing::HasSubstr("this job is not recorded: cannot make"));
}

}  // namespace
}  // namespace cgdebug::test
