// Recordings as a daemon writes them, of real jobs in shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/core/recording/recording_reader.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using recording::RecordingReader;
using recording::StopReason;
using testing_support::ExpectReplays;

class RecordingDaemon : public testing::Test {
 protected:
  v1::Recording Start(v1::RecordStartRequest request) {
    request.set_directory(path_);
    auto client = daemon_.Connect();
    const auto reply = client.Ask<v1::RecordStartReply>(request);
    EXPECT_TRUE(reply.ok()) << reply.error().message;
    return reply.ok() ? reply->recording() : v1::Recording();
  }
  v1::Recording Stop(std::uint64_t id) {
    auto client = daemon_.Connect();
    v1::RecordStopRequest request;
    request.set_recording(std::to_string(id));
    const auto reply = client.Ask<v1::RecordStopReply>(request);
    EXPECT_TRUE(reply.ok()) << reply.error().message;
    return reply.ok() ? reply->recordings(0) : v1::Recording();
  }
  bool IsOver(std::uint64_t id) {
    return WaitUntil([&] {
      auto client = daemon_.Connect();
      const auto list = client.Ask<v1::RecordListReply>(v1::RecordListRequest());
      if (!list.ok()) return false;
      for (const v1::Recording& one : list->recordings()) {
        if (one.id() == id) return !one.active();
      }
      return false;
    });
  }
  std::unique_ptr<RecordingReader> Read() {
    auto reader = RecordingReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return *std::move(reader);
  }
  testing_support::TempDir dir_;
  DaemonProcess daemon_{dir_};
  std::string path_ = dir_ / "a.cgrec";
};

TEST_F(RecordingDaemon, WritesWhatComesUntilItIsStopped) {
  ProducerProcess job({{.name = "a", .record_every = 1}, {.name = "b", .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  const auto started = Start({});
  for (int i = 0; i < 20; ++i) {
    job.Write(0);
    job.Write(1);
    ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "b", i + 1));
  }
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.snapshots(), 40u);
  EXPECT_EQ(stopped.durable_snapshots(), 40u);
  EXPECT_EQ(stopped.lost(), 0u);
  const auto reader = Read();
  ASSERT_EQ(reader->slots().size(), 2u);
  EXPECT_EQ(reader->slots()[0].probe, "a");
  EXPECT_EQ(reader->sessions().at(0).uuid.substr(0, 8), job.key());
  ExpectReplays(*reader, 0, 1, 20);
  ExpectReplays(*reader, 1, 1, 20);
  EXPECT_TRUE(reader->complete());
}

// Nothing waits for the daemon between the calls and the requests: it must see them by itself.
TEST_F(RecordingDaemon, HasExactlyTheCallsBetweenItsStartAndItsStop) {
  ProducerProcess job({{.name = "a", .capacity = 256, .record_every = 1},
                       {.name = "b", .capacity = 256, .record_every = 1}});
  std::uint64_t before = 0;
  for (int round = 0; round < 10; ++round) {
    path_ = dir_ / ("round" + std::to_string(round) + ".cgrec");
    job.Write(0, 3);  // before the start
    const auto started = Start({});
    job.Write(0, 100);
    job.Write(1, 7);
    const auto stopped = Stop(started.id());
    job.Write(0, 2);  // after the end
    EXPECT_EQ(stopped.snapshots(), 107u);
    EXPECT_EQ(stopped.lost(), 0u);
    const auto reader = Read();
    ASSERT_EQ(reader->slots().size(), 2u);
    ExpectReplays(*reader, 0, before + 4, before + 103);
    EXPECT_TRUE(reader->complete());
    const recording::Account account = reader->AccountOf(0);
    EXPECT_EQ(account.before, before + 3);
    EXPECT_EQ(account.produced, 100u);
    EXPECT_EQ(account.kept, 100u);
    EXPECT_EQ(reader->slots()[0].from_replay, before + 3);
    before += 105;
  }
}

TEST_F(RecordingDaemon, CountsWhatWasOverwrittenBeforeItWasStopped) {
  ProducerProcess job({{.name = "a", .capacity = 4, .record_every = 1}});
  const auto started = Start({});
  daemon_.Stop();
  job.Write(0, 50);
  daemon_.Signal(SIGCONT);
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.snapshots(), 4u);
  EXPECT_EQ(stopped.lost(), 46u);
  const auto reader = Read();
  const recording::Account account = reader->AccountOf(0);
  EXPECT_EQ(account.produced, 50u);
  EXPECT_EQ(account.lost_count(), 46u);
  EXPECT_FALSE(reader->complete());
}

TEST_F(RecordingDaemon, ATimedOneHasEverythingWrittenUntilItsEnd) {
  ProducerProcess job({{.name = "a", .capacity = 64, .record_every = 1}});
  v1::RecordStartRequest request;
  request.set_duration_s(0.2);
  const auto started = Start(request);
  job.Write(0, 50);
  ASSERT_TRUE(IsOver(started.id()));
  const auto reader = Read();
  EXPECT_EQ(reader->stop_reason(), StopReason::kReached);
  ExpectReplays(*reader, 0, 1, 50);
  EXPECT_TRUE(reader->complete());
}

TEST_F(RecordingDaemon, HasWhatTheDaemonFoundWhileItRan) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1}});
  job.WriteValue(0, INFINITY);  // before it: not its own
  const auto started = Start({});
  job.Write(0, 2);
  job.WriteValue(0, NAN);
  Stop(started.id());
  std::vector<std::pair<recording::MarkKind, std::uint64_t>> found;
  const auto reader = Read();
  for (const recording::Mark& mark : reader->marks()) {
    if (recording::IsFinding(mark.kind)) found.emplace_back(mark.kind, mark.replay);
  }
  EXPECT_EQ(found, (std::vector<std::pair<recording::MarkKind, std::uint64_t>>{
                       {recording::MarkKind::kFirstNan, 4}}));
}

TEST_F(RecordingDaemon, EndsWithItsReplaysAndItsProbes) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1},
                       {.name = "b", .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  v1::RecordStartRequest request;
  request.add_probes("a");
  request.set_replays(3);
  request.set_align(2);
  const auto started = Start(request);
  job.Write(0, 8);
  job.Write(1, 8);
  ASSERT_TRUE(IsOver(started.id()));
  const auto reader = Read();
  ASSERT_EQ(reader->slots().size(), 1u);
  ExpectReplays(*reader, 0, 2, 4);
  EXPECT_EQ(reader->stop_reason(), StopReason::kReached);
  EXPECT_TRUE(reader->complete());
}

TEST_F(RecordingDaemon, EndsWithTheJob) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  const auto started = Start({});
  job.Write(0, 5);
  job.ExitCleanly();
  ASSERT_TRUE(IsOver(started.id()));
  const auto reader = Read();
  ExpectReplays(*reader, 0, 1, 5);
  EXPECT_EQ(reader->stop_reason(), StopReason::kJobEnded);
  EXPECT_TRUE(reader->complete());
}

TEST_F(RecordingDaemon, StoppingOneThatEndsByItselfIsNotAnError) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  const auto started = Start({});
  job.Write(0, 5);
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon_.Session(job.key());
    return session && session->state() == v1::Session::EXITED;
  }));
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.snapshots(), 5u);
  EXPECT_EQ(stopped.slot_count(), 1u);
}

TEST_F(RecordingDaemon, TellsExactlyWhatWasOverwrittenBeforeItCouldRead) {
  ProducerProcess job({{.name = "a", .capacity = 4, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  const auto started = Start({});
  daemon_.Stop();
  job.Write(0, 50);
  daemon_.Signal(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] {
    const auto probe = daemon_.Probe(job.key(), "a");
    return probe && probe->counters().consumed() + probe->counters().lost_overwritten() == 50;
  }));
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.snapshots() + stopped.lost(), 50u);
  EXPECT_GT(stopped.lost(), 0u);
  const auto reader = Read();
  EXPECT_FALSE(reader->complete());
  std::uint64_t lost = 0;
  for (const auto& loss : reader->losses()) {
    lost += loss.count;
    EXPECT_EQ(loss.count, loss.last_ordinal - loss.first_ordinal + 1);
  }
  EXPECT_EQ(reader->snapshot_count(0) + lost, 50u);
}

TEST_F(RecordingDaemon, ARunningJobWaitsForALosslessRecordingUntilItEnds) {
  ProducerProcess job({{.name = "a", .print_every = 5, .wait_deadline_ms = 600'000}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  const auto has_policy = [&](v1::ProbeInfo::Policy policy) {
    return WaitUntil([&] {
      const auto probe = daemon_.Probe(job.key(), "a");
      return probe && probe->policy() == policy;
    });
  };
  EXPECT_TRUE(has_policy(v1::ProbeInfo::OVERWRITE));
  v1::RecordStartRequest request;
  request.set_lossless(v1::RecordStartRequest::ALWAYS);
  const auto started = Start(request);
  ASSERT_TRUE(has_policy(v1::ProbeInfo::WAIT));
  job.Write(0, 200);
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 200));
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.snapshots(), 200u) << "of a ring of 4, and every replay, not each fifth";
  EXPECT_EQ(stopped.lost(), 0u);
  EXPECT_TRUE(has_policy(v1::ProbeInfo::OVERWRITE));
}

TEST_F(RecordingDaemon, ARecordingOfARunEndsWithItsLastJobOnlyWithoutAnOwner) {
  v1::RecordStartRequest request;
  request.set_run_id("run");
  request.set_owner_pid(getpid());
  const auto started = Start(request);
  for (const int jobs : {1, 2}) {
    ProducerProcess job({Recording("a")}, -1, "run");
    ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
    job.Write(0, 3);
    job.ExitCleanly();
    ASSERT_TRUE(WaitUntil([&] {
      const auto session = daemon_.Session(job.key());
      return session && session->state() == v1::Session::EXITED;
    })) << jobs;
  }
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.slot_count(), 2u);
  EXPECT_EQ(stopped.snapshots(), 6u);
}

TEST_F(RecordingDaemon, ClosesItsRecordingsWhenItEnds) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  Start({});
  job.Write(0, 5);
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 5));
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.WaitForExit(), 0);
  const auto reader = Read();
  EXPECT_TRUE(reader->closed());
  EXPECT_EQ(reader->stop_reason(), StopReason::kDaemonStopped);
  ExpectReplays(*reader, 0, 1, 5);
}

TEST_F(RecordingDaemon, IsWrittenAsItsRequestSays) {
  ProducerProcess job({{.name = "a", .elements = 65536, .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  v1::RecordStartRequest request;
  request.set_durability(v1::RecordStartRequest::EACH);
  request.set_roll_bytes(1 << 20);
  const auto started = Start(request);
  job.Write(0, 8);  // 256 KiB each
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 8));
  auto client = daemon_.Connect();
  const auto list = client.Ask<v1::RecordListReply>(v1::RecordListRequest());
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->recordings(0).snapshots(), 8u);
  EXPECT_EQ(list->recordings(0).durable_snapshots(), 8u);
  Stop(started.id());
  const auto reader = Read();
  EXPECT_GE(reader->segment_count(), 2u);
  ExpectReplays(*reader, 0, 1, 8);
  EXPECT_TRUE(reader->complete());
}

TEST_F(RecordingDaemon, WithoutDurabilityClaimsNone) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  v1::RecordStartRequest request;
  request.set_durability(v1::RecordStartRequest::NONE);
  const auto started = Start(request);
  job.Write(0, 5);
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 5));
  const auto stopped = Stop(started.id());
  EXPECT_EQ(stopped.snapshots(), 5u);
  EXPECT_EQ(stopped.durable_snapshots(), 0u);
  EXPECT_TRUE(Read()->complete());
}

TEST_F(RecordingDaemon, AddsNothingToAFinishedRecording) {
  ProducerProcess job({{.name = "a", .capacity = 16, .record_every = 1}});
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 0));
  const auto started = Start({});
  job.Write(0, 2);
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 2));
  Stop(started.id());
  auto client = daemon_.Connect();
  v1::RecordStartRequest again;
  again.set_directory(path_);
  const auto refused = client.Ask<v1::RecordStartReply>(again);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("cgdebug-cli rm -f '" + path_ + "'"));
  v1::FreezeRequest freeze;
  freeze.set_directory(path_);
  EXPECT_FALSE(client.Ask<v1::FreezeReply>(freeze).ok());
  job.Write(0, 2);
  ASSERT_TRUE(daemon_.WaitForConsumed(job.key(), "a", 4));
  ExpectReplays(*Read(), 0, 1, 2);
}

TEST_F(RecordingDaemon, IsNotHeldUpByAPipeWhereTheRecordingGoes) {
  std::filesystem::create_directory(path_);
  ASSERT_EQ(mkfifo((path_ + "/segment-000001.cgd").c_str(), 0600), 0);
  auto client = daemon_.Connect();
  v1::RecordStartRequest request;
  request.set_directory(path_);
  EXPECT_THAT(client.Ask<v1::RecordStartReply>(request).error().message,
              testing::HasSubstr("is not a regular file"));
}

TEST_F(RecordingDaemon, RefusesWhatItCannotDoAndSaysWhatToType) {
  auto client = daemon_.Connect();
  v1::RecordStartRequest request;
  request.set_directory("relative.cgrec");
  EXPECT_FALSE(client.Ask<v1::RecordStartReply>(request).ok());
  request.set_directory("/proc/no/such/place");
  EXPECT_FALSE(client.Ask<v1::RecordStartReply>(request).ok());
  request.set_directory(path_);
  request.set_roll_bytes(4096);
  EXPECT_THAT(client.Ask<v1::RecordStartReply>(request).error().message,
              testing::HasSubstr("--roll-size 1M"));
  request.set_roll_bytes(0);
  request.set_max_bytes(1);
  EXPECT_THAT(client.Ask<v1::RecordStartReply>(request).error().message,
              testing::HasSubstr("holds nothing"));
  request.set_max_bytes(0);
  for (const double duration : {-1.0, std::nan(""), HUGE_VAL, 4e9}) {
    request.set_duration_s(duration);
    EXPECT_THAT(client.Ask<v1::RecordStartReply>(request).error().message,
                testing::HasSubstr("a recording cannot last"));
  }
  request.set_duration_s(0);
  request.set_durability(static_cast<v1::RecordStartRequest::Durability>(9));
  EXPECT_THAT(client.Ask<v1::RecordStartReply>(request).error().message,
              testing::HasSubstr("none, interval or each"));
  EXPECT_FALSE(std::filesystem::exists(path_));
  const auto stopped = client.Ask<v1::RecordStopReply>(v1::RecordStopRequest());
  ASSERT_FALSE(stopped.ok());
  EXPECT_THAT(stopped.error().message, testing::HasSubstr("record start"));
}

}  // namespace
}  // namespace cgdebug::test
