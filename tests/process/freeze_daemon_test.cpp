// What `freeze` finds of real jobs, in the daemon's memory and in shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "daemon/core/recording/recording_reader.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using layout::LossCause;
using recording::RecordingReader;
using testing_support::ExpectReplays;

class FreezeDaemon : public testing::Test {
 protected:
  static SlotSpec Spec(std::uint32_t capacity) {
    return {.name = "a", .elements = 1024, .capacity = capacity, .record_every = 1};  // 4 KiB
  }
  static bool Ended(DaemonProcess& daemon, const ProducerProcess& job, v1::Session::State state) {
    return WaitUntil([&] {
      const auto session = daemon.Session(job.key());
      return session && session->state() == state;
    });
  }
  std::unique_ptr<RecordingReader> Freeze(DaemonProcess& daemon, const ProducerProcess& job,
                                          std::uint64_t last = 0) {
    auto client = daemon.Connect();
    v1::FreezeRequest request;
    request.set_session(job.key());
    request.set_directory(dir_ / "a.cgrec");
    request.set_last(last);
    const auto reply = client.Ask<v1::FreezeReply>(request);
    EXPECT_TRUE(reply.ok()) << reply.error().message;
    auto reader = RecordingReader::Open(dir_ / "a.cgrec");
    EXPECT_TRUE(reader.ok()) << reader.error().message;
    return *std::move(reader);
  }
  testing_support::TempDir dir_;
};

TEST_F(FreezeDaemon, HasTheWholeRingOfADeadJobThatNoDaemonSaw) {
  ProducerProcess job({Spec(200)});  // more than a daemon's memory keeps of a slot
  job.Write(0, 300);
  job.Kill();
  DaemonProcess daemon(dir_);
  ASSERT_TRUE(Ended(daemon, job, v1::Session::DIED));
  const auto reader = Freeze(daemon, job);
  ExpectReplays(*reader, 0, 101, 300);
  EXPECT_FALSE(reader->complete()) << "nobody looked at replays 1..100";
  const recording::Account account = reader->AccountOf(0);
  EXPECT_EQ(account.produced, 300u);
  EXPECT_EQ(account.kept, 200u);
  EXPECT_EQ(account.lost,
            (std::map<std::string, std::uint64_t>{{"overwritten before it was read", 100}}));
}

TEST_F(FreezeDaemon, ForTheNewestReplaysIsCompleteWithoutTheOthers) {
  ProducerProcess job({Spec(8)});
  DaemonProcess daemon(dir_);
  job.Write(0, 8);
  const auto reader = Freeze(daemon, job, 3);
  ExpectReplays(*reader, 0, 6, 8);
  EXPECT_TRUE(reader->complete());
  EXPECT_EQ(reader->AccountOf(0).before, 5u);
}

TEST_F(FreezeDaemon, HasWhatTheDaemonFoundAndPinned) {
  ProducerProcess job({Spec(4)});
  DaemonProcess daemon(dir_);
  for (int replay = 1; replay <= 40; ++replay) {
    replay == 11 ? job.WriteValue(0, NAN) : job.Write(0);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", replay));
  }
  job.ExitCleanly();
  const auto reader = Freeze(daemon, job);
  std::vector<std::uint64_t> replays;
  for (const auto& ref : reader->Snapshots(0)) replays.push_back(ref.replay);
  EXPECT_EQ(replays, (std::vector<std::uint64_t>{8, 9, 10, 11, 37, 38, 39, 40}))
      << "the ring has 4, so that memory had 3 before the NaN";
  EXPECT_TRUE(reader->ReadPayload(*reader->Find(0, 11)).ok());
  const auto is_nan = [](const recording::Mark& mark) {
    return mark.kind == recording::MarkKind::kFirstNan && mark.replay == 11 && mark.count == 1024;
  };
  EXPECT_EQ(std::ranges::count_if(reader->marks(), is_nan), 1);
  const recording::Account account = reader->AccountOf(0);
  EXPECT_EQ(account.produced, 40u);
  EXPECT_EQ(account.lost, (std::map<std::string, std::uint64_t>{{"no longer kept", 32}}));
}

TEST_F(FreezeDaemon, HasTheNewestReplaysThatWereAskedFor) {
  ProducerProcess job({Spec(100)});
  DaemonProcess daemon(dir_, {"--max-memory", "10K"});
  job.Write(0, 100);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 100));
  job.Write(0, 50);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 150));
  ExpectReplays(*Freeze(daemon, job, 70), 0, 81, 150);
}

TEST_F(FreezeDaemon, WritesNothingForProbesThatTheJobLacks) {
  ProducerProcess job({Spec(8)});
  DaemonProcess daemon(dir_);
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 1));
  auto client = daemon.Connect();
  v1::FreezeRequest request;
  request.set_directory(dir_ / "a.cgrec");
  request.add_probes("b*");
  const auto reply = client.Ask<v1::FreezeReply>(request);
  ASSERT_FALSE(reply.ok());
  EXPECT_THAT(reply.error().message, testing::HasSubstr("no probe matches 'b*' in session "));
  EXPECT_EQ(client.last_failure(), client::Failure::kNothingMatched);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "a.cgrec"));
}

TEST_F(FreezeDaemon, HasTheValuesOfALiveJobThatMemoryLetGo) {
  ProducerProcess job({Spec(32)});
  DaemonProcess daemon(dir_, {"--max-memory", "10K"});
  job.Write(0, 32);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 32));
  job.Write(0, 8);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 40));
  const auto reader = Freeze(daemon, job);
  ExpectReplays(*reader, 0, 9, 40);
  EXPECT_EQ(reader->AccountOf(0).lost_count(), 8u);
}

TEST_F(FreezeDaemon, SaysWhichValuesAreGone) {
  ProducerProcess job({Spec(8)});
  DaemonProcess daemon(dir_, {"--max-memory", "10K"});  // two payloads
  job.Write(0, 8);
  job.ExitCleanly();
  ASSERT_TRUE(Ended(daemon, job, v1::Session::EXITED));
  const auto reader = Freeze(daemon, job);
  EXPECT_EQ(reader->snapshot_count(0), 8u);
  EXPECT_FALSE(reader->complete());
  ASSERT_EQ(reader->losses().size(), 1u);
  const recording::Loss& loss = reader->losses()[0];
  EXPECT_EQ(loss.cause, LossCause::kValuesGone);
  EXPECT_EQ(loss.count, 6u);
  EXPECT_EQ(loss.before_replay, 7u);
  const auto first = reader->Read(*reader->Find(0, 1));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->stats_only);
  EXPECT_EQ(first->stats.max, 1024);
}

// Another writer of the catalogue holds the freeze up, for ten seconds at most.
TEST_F(FreezeDaemon, OtherClientsAreAnsweredMeanwhile) {
  ProducerProcess job({Spec(8)});
  DaemonProcess daemon(dir_);
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a", 1));
  {  // an unfinished recording, because a folder with other files in it is refused
    const auto writer = recording::RecordingWriter::Open(dir_ / "open.cgrec", {});
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    std::filesystem::copy(dir_ / "open.cgrec", dir_ / "a.cgrec");
  }
  sqlite3* catalogue = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ / "a.cgrec/catalogue.sqlite").c_str(), &catalogue), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(catalogue, "begin exclusive", nullptr, nullptr, nullptr), SQLITE_OK);
  std::atomic<bool> is_frozen = false;
  std::thread freezing([&] {
    Freeze(daemon, job);
    is_frozen = true;
  });
  EXPECT_TRUE(
      WaitUntil([&] { return std::filesystem::exists(dir_ / "a.cgrec/segment-000002.cgd"); }));
  EXPECT_NO_THROW(EXPECT_EQ(daemon.Status().sessions_size(), 1));
  EXPECT_FALSE(is_frozen);
  sqlite3_close(catalogue);
  freezing.join();
  EXPECT_EQ(daemon.Status().sessions_size(), 1);
}

TEST_F(FreezeDaemon, SaysThatTheLastOneWasHalfWritten) {
  ProducerProcess job({Spec(8)});
  job.Write(0, 5);
  job.BeginOnly(0);
  job.Kill();
  DaemonProcess daemon(dir_);
  ASSERT_TRUE(Ended(daemon, job, v1::Session::DIED));
  const auto reader = Freeze(daemon, job);
  ExpectReplays(*reader, 0, 1, 5);
  EXPECT_FALSE(reader->complete());
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].cause, LossCause::kAtDeath);
  EXPECT_EQ(reader->losses()[0].count, 1u);
}

TEST_F(FreezeDaemon, WithoutANameTakesEveryRankOfTheNewestJobAndNothingElse) {
  const ProducerProcess alone({Spec(8)}, -1, "alone");
  const ProducerProcess before({Spec(8)}, -1, "before", 0);
  const ProducerProcess first({Spec(8)}, -1, "job", 0);
  const ProducerProcess second({Spec(8)}, -1, "job", 1);
  DaemonProcess daemon(dir_);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Status().sessions_size() == 4; }));
  auto client = daemon.Connect();
  v1::FreezeRequest request;
  request.set_directory(dir_ / "a.cgrec");
  const auto reply = client.Ask<v1::FreezeReply>(request);
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  const auto reader = RecordingReader::Open(dir_ / "a.cgrec");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::pair<std::string, int>> ranks;
  for (const recording::Session& session : (*reader)->sessions()) {
    ranks.emplace_back(session.run_id, session.rank);
  }
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(std::pair("job", 0), std::pair("job", 1)));
}

}  // namespace
}  // namespace cgdebug::test
