// What the daemon does with a job's tensors: real shared memory, real producers, a real socket.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "proto/layout/realtime.h"
#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/pipe_reader.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> Floats(const std::string& payload) {
  std::vector<float> values(payload.size() / sizeof(float));
  std::memcpy(values.data(), payload.data(), payload.size());
  return values;
}

SlotSpec Printing(const std::string& name, std::uint32_t every = 1) {
  SlotSpec spec = Recording(name, 64);
  spec.record_every = 0;
  spec.print_every = every;
  return spec;
}

SlotSpec Comparing(const std::string& name, float expected, std::uint32_t capacity = 64) {
  SlotSpec spec = Recording(name, capacity);
  spec.record_every = 0;
  spec.compare_every = 1;
  spec.expected = expected;
  return spec;
}

class DaemonTest : public testing::Test {
 protected:
  testing_support::TempDir directory_;
};

TEST_F(DaemonTest, ShowsTheJobAndTheValuesOfItsLastReplay) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("blk0.out", 4)});
  job.Write(0, 3);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 3));

  const auto session = daemon.Session(job.key());
  EXPECT_EQ(session->label(), "test");
  EXPECT_EQ(session->pid(), job.pid());
  EXPECT_EQ(session->state(), v1::Session::ALIVE);
  EXPECT_EQ(session->replay(), 3u);
  EXPECT_EQ(session->counters().produced(), 3u);
  const client::Tensor tensor = daemon.Get(job.key(), "blk0.out");
  EXPECT_EQ(tensor.reply.snapshot().replay(), 3u);
  EXPECT_THAT(Floats(tensor.payload), ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(Floats(daemon.Get(job.key(), "blk0.out", -3).payload),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// Snapshots large enough for the workers, in more slots than they take at a time, with small ones
// between.
TEST_F(DaemonTest, WorkersKeepTheOrderAndTheCountsOfLargeSnapshots) {
  std::vector<SlotSpec> slots;
  for (int i = 0; i < 12; ++i) {
    slots.push_back(Printing("blk" + std::to_string(i)));
    slots.back().capacity = 4;
    if (i % 3 != 2) slots.back().elements = 100'000;
  }
  PipeReader terminal;
  ProducerProcess job(slots, terminal.write_fd());
  DaemonProcess daemon(directory_, {"--workers", "3"});
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key()).has_value(); }));
  daemon.Stop();
  for (std::uint32_t i = 0; i < slots.size(); ++i) job.Write(i, 3);
  daemon.Signal(SIGCONT);
  for (const SlotSpec& slot : slots) {
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), slot.name, 3)) << slot.name;
    const auto tensor = daemon.Get(job.key(), slot.name);
    const std::vector<float> values = Floats(tensor.payload);
    ASSERT_EQ(values.size(), slot.elements);
    EXPECT_EQ(values.back(), 3 + static_cast<float>(slot.elements - 1));
    EXPECT_EQ(tensor.reply.snapshot().stats().max(), values.back());
  }
  const auto counters = daemon.Session(job.key())->counters();
  EXPECT_EQ(counters.produced(), 36u);
  EXPECT_EQ(counters.consumed(), 36u);
  ASSERT_TRUE(WaitUntil([&] { return CountOf(terminal.text(), "[cgdebug]") == 36; }));
  std::size_t last = 0;
  for (int replay = 1; replay <= 3; ++replay) {  // one after the other, each in graph order
    for (const SlotSpec& slot : slots) {
      const auto at = terminal.text().find("@" + std::to_string(replay) + " " + slot.name + " ");
      ASSERT_NE(at, std::string::npos);
      EXPECT_GE(at, last);
      last = at;
    }
  }
}

TEST_F(DaemonTest, ReadsWhatAKilledJobLeftInSlotsThatWereAtRest) {
  std::vector<SlotSpec> slots;
  for (int i = 0; i < 1200; ++i) {
    slots.push_back(Recording("blk" + std::to_string(i), 4));
    slots.back().graph_id = 1 + i / 400;
  }
  DaemonProcess daemon(directory_);
  ProducerProcess job(slots);
  const auto consumed = [&] { return daemon.Session(job.key())->counters().consumed(); };
  std::uint64_t written = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < end) {  // the other graphs come to rest
    job.Write(0);
    ++written;
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0", written));
  }
  daemon.Stop();
  job.Write(405);
  job.Write(805, 6);
  job.Kill();
  daemon.Signal(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key())->state() == v1::Session::DIED; }));
  EXPECT_EQ(consumed(), written + 1 + 4);
  EXPECT_EQ(daemon.Session(job.key())->counters().lost_overwritten(), 2u);
  EXPECT_THAT(Floats(daemon.Get(job.key(), "blk405").payload).front(), 1);
  EXPECT_THAT(Floats(daemon.Get(job.key(), "blk805").payload).front(), 6);
}

TEST_F(DaemonTest, ShowsTheHostsTimeOfSnapshotsThatAnotherClockStamped) {
  constexpr std::uint32_t kHour = 3600;
  constexpr std::int64_t kHourNs = kHour * 1'000'000'000ll;
  DaemonProcess daemon(directory_);
  SlotSpec spec = Recording("body.out", 64);
  spec.in_body = true;  // of the direct lane
  ProducerProcess job({spec});
  job.Replay(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "body.out", 1));
  job.FakeLag(0, kHour);
  job.Replay(0, 2);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "body.out", 3));
  const std::int64_t shown_ns = daemon.Get(job.key(), "body.out").reply.snapshot().timestamp_ns();
  EXPECT_LE(shown_ns, layout::RealtimeNs());
  EXPECT_GT(shown_ns, layout::RealtimeNs() - kHourNs / 2);
  EXPECT_GE(daemon.Probe(job.key(), "body.out")->last_timestamp_ns(), shown_ns);
}

TEST_F(DaemonTest, FindsJobsThatCameBeforeItAndJobsThatComeLater) {
  ProducerProcess before({Recording("a", 4)});
  before.Write(0, 2);
  DaemonProcess daemon(directory_);
  ProducerProcess after({Recording("b", 4)});
  after.Write(0, 2);
  EXPECT_TRUE(daemon.WaitForConsumed(before.key(), "a", 2));
  EXPECT_TRUE(daemon.WaitForConsumed(after.key(), "b", 2));
}

TEST_F(DaemonTest, PrintsIntoThePipeThatIsTheJobsStderrAndLetsItGoWhenTheJobEnds) {
  DaemonProcess daemon(directory_);
  PipeReader terminal;
  SlotSpec spec = Printing("blk0.out", 2);
  spec.print_max_items = 4;
  ProducerProcess job({spec}, terminal.write_fd());
  terminal.CloseWriteEnd();
  job.Write(0, 4);
  ASSERT_TRUE(terminal.WaitFor("@3 blk0.out"));
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 2));
  EXPECT_EQ(CountOf(terminal.text(), "[cgdebug]"), 2u) << terminal.text();
  EXPECT_THAT(terminal.text(), HasSubstr("@1 blk0.out  f32[8]"));
  EXPECT_THAT(terminal.text(), HasSubstr("[1, 2, ..., 7, 8]"));
  EXPECT_THAT(terminal.text(), testing::Not(HasSubstr("@2 ")));
  EXPECT_FALSE(terminal.ended());
  job.Kill();
  EXPECT_TRUE(WaitUntil([&] { return terminal.ended(); }));
}

TEST_F(DaemonTest, PrintsIntoAFileThatIsTheJobsStderrBehindWhatTheJobWrote) {
  DaemonProcess daemon(directory_);
  const std::string path = directory_ / "stderr";
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::write(file.get(), "before\n", 7), 7);
  ProducerProcess job({Printing("blk0.out")}, file.get());
  job.Write(0, 2);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 2));
  ASSERT_TRUE(WaitUntil([&] { return CountOf(testing_support::ReadText(path), "\n") == 3; }));
  EXPECT_THAT(testing_support::ReadText(path),
              testing::StartsWith("before\n[cgdebug] @1 blk0.out"));
  ASSERT_EQ(::write(file.get(), "behind\n", 7), 7);
  EXPECT_THAT(testing_support::ReadText(path), testing::EndsWith("\nbehind\n"));

  v1::TailRequest request;
  request.set_last(100);
  std::vector<std::string> lines;
  client::Client client = daemon.Connect();
  ASSERT_TRUE(client
                  .Tail(request,
                        [&](const v1::TailReply& event) {
                          if (event.has_print()) lines.push_back(event.print().text());
                          return true;
                        })
                  .ok());
  EXPECT_THAT(lines, ElementsAre(HasSubstr("@1 blk0.out"), HasSubstr("@2 blk0.out")));
}

TEST_F(DaemonTest, CountsLinesThatAFullTerminalDidNotTakeAndGoesOn) {
  DaemonProcess daemon(directory_);
  PipeReader terminal;
  SlotSpec spec = Printing("blk0.out");
  spec.capacity = 4096;
  ProducerProcess job({spec}, terminal.write_fd());
  job.Write(0, 2000);  // more than a pipe holds; nobody reads it
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 2000));
  const std::size_t shown = CountOf(terminal.text(), "[cgdebug]");
  const auto control = ring::SharedFile::Open(job.segment());
  const auto* told =
      reinterpret_cast<const layout::ConsumerLine*>(control.data() + layout::kConsumerLineOffset);
  EXPECT_EQ(told->printed_lines, 2000u);
  EXPECT_EQ(told->terminal_lines, shown);
  EXPECT_GT(shown, 0u);
  EXPECT_LT(shown, 2000u);
}

TEST_F(DaemonTest, KeepsTheLastValuesOfAJobThatWasKilled) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("blk0.out", 4)});
  job.Write(0, 6);
  job.BeginOnly(0);
  job.Kill();
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(job.key());
    return session && session->state() == v1::Session::DIED;
  }));
  const client::Tensor tensor = daemon.Get(job.key(), "blk0.out");
  EXPECT_EQ(tensor.reply.snapshot().replay(), 6u);
  EXPECT_EQ(Floats(tensor.payload)[0], 6);
  const v1::Counters counters = daemon.Probe(job.key(), "blk0.out")->counters();
  EXPECT_EQ(counters.lost_at_death(), 1u);
  EXPECT_EQ(counters.produced(), 6u);
  EXPECT_EQ(counters.consumed() + counters.lost_overwritten(), 6u);
  EXPECT_GT(daemon.Session(job.key())->ended_ns(), 0);
}

TEST_F(DaemonTest, ReadsWhatWasLeftByAJobThatDiedBeforeTheDaemonCame) {
  ProducerProcess job({Recording("blk0.out", 4), Printing("blk1.out")});
  job.Write(0, 6);
  job.Write(1, 2);
  job.Kill();
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 4));
  EXPECT_TRUE(WaitUntil([&] { return daemon.Session(job.key())->state() == v1::Session::DIED; }));
  EXPECT_EQ(daemon.Probe(job.key(), "blk0.out")->counters().lost_overwritten(), 2u);
  EXPECT_EQ(Floats(daemon.Get(job.key(), "blk0.out").payload)[0], 6);
  EXPECT_EQ(Floats(daemon.Get(job.key(), "blk1.out").payload)[0], 2);
}

TEST_F(DaemonTest, AJobThatWasLongDeadWhenTheDaemonCameIsShown) {
  constexpr std::int64_t kKeptNs = 2'000'000'000;
  ProducerProcess job({Recording("blk0.out", 4)});
  job.Write(0, 1);
  job.Kill();
  const std::int64_t died_ns = layout::RealtimeNs();
  ASSERT_TRUE(WaitUntil([&] { return layout::RealtimeNs() - died_ns > kKeptNs; }));
  DaemonProcess daemon(directory_, {"--keep-dead", "2s"});
  EXPECT_TRUE(daemon.Session(job.key())) << "as long as one that dies now";
  EXPECT_TRUE(WaitUntil([&] { return !daemon.Session(job.key()); }));
}

TEST_F(DaemonTest, TellsAnEndFromADeathAndRemovesTheFilesAfterKeepDead) {
  DaemonProcess daemon(directory_, {"--keep-dead", "300ms"});
  v1::TailRequest request;
  request.set_follow(true);
  request.set_until_exit(true);
  ProducerProcess job({Recording("blk0.out", 4)});
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 1));
  client::Client client = daemon.Connect();
  v1::Session::State state = v1::Session::ALIVE;
  ASSERT_TRUE(client
                  .Tail(request,
                        [&](const v1::TailReply& event) {
                          if (event.caught_up()) job.ExitCleanly();
                          if (event.has_session_change() && event.session_change().ended()) {
                            state = event.session_change().session().state();
                          }
                          return true;
                        })
                  .ok());
  EXPECT_EQ(state, v1::Session::EXITED);
  EXPECT_TRUE(WaitUntil([&] { return !daemon.Session(job.key()); }));
  EXPECT_NE(::access(ring::ShmPath(job.segment()).c_str(), F_OK), 0);
  EXPECT_NE(::access(ring::ShmPath(job.segment() + ".1").c_str(), F_OK), 0);
}

TEST_F(DaemonTest, SharedMemoryOfAJobThatSaidGoodbyeGoesAndItsValuesStay) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("blk0.out", 4)});
  job.Write(0, 5);  // some of it perhaps read only after the goodbye
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(job.key());
    return session && session->state() == v1::Session::EXITED;
  }));
  EXPECT_TRUE(WaitUntil([&] {
    return ::access(ring::ShmPath(job.segment()).c_str(), F_OK) != 0 &&
           ::access(ring::ShmPath(job.segment() + ".1").c_str(), F_OK) != 0;
  }));
  EXPECT_THAT(Floats(daemon.Get(job.key(), "blk0.out").payload),
              ElementsAre(5, 6, 7, 8, 9, 10, 11, 12));
  const auto counters = daemon.Session(job.key())->counters();
  EXPECT_EQ(counters.produced(), 5u);
  EXPECT_EQ(counters.consumed() + counters.lost_overwritten(), 5u);
}

TEST_F(DaemonTest, ItsMemoryIsShownWithoutTheJobs) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer keeps freed memory and shadows of all of it";
#endif
  DaemonProcess daemon(directory_, {"--max-memory", "1M"});
  SlotSpec spec = Recording("blk0.out", 16);
  spec.elements = 1 << 20;
  ProducerProcess job({spec});
  for (std::uint64_t i = 1; i <= 16; ++i) {  // every page of a ring of 64 MiB
    job.Write(0, 1);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", i));
  }
  EXPECT_LT(daemon.Status().rss_bytes(), 48u << 20);
  EXPECT_GT(daemon.Status().rss_bytes(), 0u);
}

TEST_F(DaemonTest, FailsAComparisonAtItsFirstReplayAndStaysFailed) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Comparing("blk0.out", 7)});
  for (const float value : {7.0f, 7.0f, 8.0f, 7.0f, 9.0f}) job.WriteValue(0, value);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 5));
  const v1::Verdict verdict = daemon.Probe(job.key(), "blk0.out")->verdict();
  EXPECT_EQ(verdict.state(), v1::Verdict::FAIL);
  EXPECT_EQ(verdict.compared(), 5u);
  EXPECT_EQ(verdict.mismatched(), 2u);
  EXPECT_EQ(verdict.first_failed_replay(), 3u);
  EXPECT_THAT(verdict.text(), HasSubstr("Mismatched elements: 8 / 8"));
  EXPECT_EQ(daemon.Session(job.key())->failed_probes(), 1u);
}

TEST_F(DaemonTest, DoesNotPassAComparisonThatMissedAReplay) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Comparing("blk0.out", 7, 4)});
  job.WriteValue(0, 7);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 1));
  EXPECT_EQ(daemon.Probe(job.key(), "blk0.out")->verdict().state(), v1::Verdict::PASS);
  daemon.Stop();
  for (int i = 0; i < 10; ++i) job.WriteValue(0, 7);
  daemon.Signal(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] {
    const auto verdict = daemon.Probe(job.key(), "blk0.out")->verdict();
    return verdict.compared() + verdict.lost() == 11;
  }));
  const v1::Verdict verdict = daemon.Probe(job.key(), "blk0.out")->verdict();
  EXPECT_EQ(verdict.state(), v1::Verdict::ERROR);
  EXPECT_EQ(verdict.lost(), 6u);
  EXPECT_EQ(verdict.mismatched(), 0u);
  EXPECT_THAT(verdict.text(), HasSubstr("could not be compared"));
}

TEST_F(DaemonTest, SaysWhyAnExpectedTensorCannotBeUsed) {
  DaemonProcess daemon(directory_);
  SlotSpec spec = Comparing("blk0.out", 7);
  spec.expected_extent = 99;
  ProducerProcess job({spec});
  job.WriteValue(0, 7);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 1));
  const v1::Verdict verdict = daemon.Probe(job.key(), "blk0.out")->verdict();
  EXPECT_EQ(verdict.state(), v1::Verdict::ERROR);
  EXPECT_EQ(verdict.compared(), 0u);
  EXPECT_THAT(verdict.text(), HasSubstr("expected tensor"));
}

TEST_F(DaemonTest, NamesTheFirstNanInOrderOfReplayThenRegistration) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("first", 16), Recording("second", 16)});
  job.WriteValue(0, 1);
  job.WriteValue(1, std::numeric_limits<float>::quiet_NaN());  // second@1
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "second", 1));
  job.WriteValue(0, std::numeric_limits<float>::quiet_NaN());  // first@2
  job.WriteValue(0, std::numeric_limits<float>::infinity());   // first@3
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "first", 3));
  const auto session = daemon.Session(job.key());
  EXPECT_EQ(session->first_nan().probe(), "second");
  EXPECT_EQ(session->first_nan().replay(), 1u);
  EXPECT_EQ(session->first_nan().count(), 8u);
  EXPECT_EQ(session->first_inf().probe(), "first");
  EXPECT_EQ(session->first_inf().replay(), 3u);
  EXPECT_EQ(session->nonfinite_probes(), 2u);
}

TEST_F(DaemonTest, DropsTheOldestValuesOverTheMemoryLimitAndNeverTheStatistics) {
  DaemonProcess daemon(directory_, {"--max-memory", "100B"});
  ProducerProcess job({Recording("old", 4), Recording("new", 4)});
  for (std::uint32_t slot : {0, 1}) {
    job.Write(slot, 3);
    ASSERT_TRUE(daemon.WaitForConsumed(job.key(), slot == 0 ? "old" : "new", 3));
  }
  const client::Tensor old = daemon.Get(job.key(), "old", -2);
  EXPECT_TRUE(old.reply.payload_dropped());
  EXPECT_EQ(old.payload, "");
  EXPECT_EQ(old.reply.snapshot().stats().min(), 2);
  EXPECT_EQ(Floats(daemon.Get(job.key(), "new").payload)[0], 3);
  EXPECT_LE(daemon.Status().memory_bytes(), 100u);
}

TEST_F(DaemonTest, CleansNamesThatCarryEscapeSequences) {
  DaemonProcess daemon(directory_);
  PipeReader terminal;
  ProducerProcess job({Printing("evil\x1b]0;owned\x07\xff")}, terminal.write_fd());
  job.Write(0, 1);
  ASSERT_TRUE(terminal.WaitFor(R"(evil\x1b]0;owned\x07\xff)"));
  EXPECT_THAT(terminal.text(), testing::Not(HasSubstr("\x1b")));
}

TEST_F(DaemonTest, AnotherSlotInTheSamePlaceStartsAnew) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Comparing("blk0.out", 7, 4)});
  job.WriteValue(0, 9);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 1));
  for (int round = 0; round < 20; ++round) {
    job.Replace(0);
    for (int replay = 0; replay < 3; ++replay) job.WriteValue(0, 7);
    ASSERT_TRUE(WaitUntil([&] {
      const auto probe = daemon.Probe(job.key(), "blk0.out");
      return probe && probe->slot() == static_cast<std::uint32_t>(round) + 2 &&
             probe->counters().consumed() == 3;
    }));
    const auto probe = daemon.Probe(job.key(), "blk0.out");
    EXPECT_EQ(probe->verdict().state(), v1::Verdict::PASS) << "nothing of the earlier slot";
    EXPECT_EQ(probe->verdict().compared(), 3u);
    EXPECT_EQ(probe->counters().lost_overwritten(), 0u);
  }
  const auto session = daemon.Session(job.key());
  EXPECT_EQ(session->slot_count(), 21u) << "slots that were given up are still shown";
  ASSERT_EQ(session->lanes_size(), 1);
  EXPECT_EQ(session->lanes(0).lane(), v1::ProbeInfo::HOST);
  EXPECT_EQ(session->lanes(0).slots(), 21u);
  EXPECT_EQ(session->counters().produced(), 61u);
  EXPECT_EQ(session->counters().consumed(), 61u);
  EXPECT_EQ(daemon.Get(job.key(), "blk0.out").reply.snapshot().stats().max(), 7);
}

}  // namespace
}  // namespace cgdebug::test
