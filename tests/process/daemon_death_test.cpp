// Deaths and standstills, of the daemon and around it: nothing twice, nothing silently lost.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/pipe_reader.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::HasSubstr;

SlotSpec PrintingAndComparing(const std::string& name, std::uint32_t capacity) {
  SlotSpec spec;
  spec.name = name;
  spec.capacity = capacity;
  spec.print_every = 1;
  spec.compare_every = 1;
  spec.expected = 7;
  return spec;
}

class DaemonDeathTest : public testing::Test {
 protected:
  testing_support::TempDir directory_;
};

TEST_F(DaemonDeathTest, ANewDaemonGoesOnWhereTheKilledOneWas) {
  PipeReader terminal;
  ProducerProcess job({PrintingAndComparing("blk0.out", 64)}, terminal.write_fd());
  {
    DaemonProcess first(directory_);
    job.WriteValue(0, 7);
    job.WriteValue(0, 8);  // does not match
    job.WriteValue(0, 7);
    ASSERT_TRUE(first.WaitForConsumed(job.key(), "blk0.out", 3));
    first.Kill();
  }
  for (int i = 0; i < 5; ++i) job.WriteValue(0, 7);
  DaemonProcess second(directory_);
  ASSERT_TRUE(second.WaitForConsumed(job.key(), "blk0.out", 8));

  const auto probe = second.Probe(job.key(), "blk0.out");
  EXPECT_EQ(probe->verdict().compared(), 8u);
  EXPECT_EQ(probe->verdict().mismatched(), 1u);
  EXPECT_EQ(probe->verdict().lost(), 0u);
  EXPECT_EQ(probe->verdict().first_failed_replay(), 2u);
  EXPECT_EQ(probe->verdict().state(), v1::Verdict::FAIL);
  EXPECT_EQ(probe->counters().lost_overwritten(), 0u);
  for (int replay = 1; replay <= 8; ++replay) {
    EXPECT_EQ(CountOf(terminal.text(), "@" + std::to_string(replay) + " blk0.out"), 1u) << replay;
  }
  // The first daemon consumed it, and it is still in the ring: it is served again, but printed and
  // compared once.
  EXPECT_EQ(second.Get(job.key(), "blk0.out", 2).reply.snapshot().stats().max(), 8);
}

// By itself it reads the newest entries that the first daemon consumed, and the rest on request.
TEST_F(DaemonDeathTest, ANewDaemonAnswersWithAReplayThatOnlyTheRingStillHolds) {
  SlotSpec spec = Recording("large");
  spec.elements = 1 << 18;
  ProducerProcess job({spec});
  {
    DaemonProcess first(directory_);
    job.Write(0, 10);
    ASSERT_TRUE(first.WaitForConsumed(job.key(), "large", 10));
    first.Kill();
  }
  DaemonProcess second(directory_, {"--max-memory", "4M"});
  ASSERT_TRUE(second.WaitForConsumed(job.key(), "large", 10));
  for (const std::int64_t replay : {1, 6, 10}) {
    const client::Tensor tensor = second.Get(job.key(), "large", replay);
    EXPECT_EQ(tensor.reply.snapshot().replay(), static_cast<std::uint64_t>(replay));
    EXPECT_EQ(tensor.reply.snapshot().stats().min(), static_cast<double>(replay));
    EXPECT_FALSE(tensor.reply.payload_dropped());
    EXPECT_EQ(tensor.payload.size(), std::size_t{1} << 20);
  }
}

TEST_F(DaemonDeathTest, ANewDaemonKnowsTheFirstNanAndInfThatTheKilledOneSaw) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  ProducerProcess job({{.name = "a", .capacity = 2, .record_every = 1}});
  {
    DaemonProcess first(directory_);
    std::uint64_t replay = 0;
    for (const float value : {1.0f, kNan, 1.0f, 1.0f, 1.0f}) {  // no longer in the ring at the end
      job.WriteValue(0, value);
      ASSERT_TRUE(first.WaitForConsumed(job.key(), "a", ++replay));
    }
    first.Kill();
  }
  DaemonProcess second(directory_);
  for (const float value : {kNan, kInf}) job.WriteValue(0, value);
  ASSERT_TRUE(second.WaitForConsumed(job.key(), "a", 7));
  const auto session = second.Session(job.key());
  EXPECT_EQ(session->nonfinite_probes(), 1u);
  EXPECT_EQ(session->first_nan().probe(), "a");
  EXPECT_EQ(session->first_nan().replay(), 2u);
  EXPECT_EQ(session->first_nan().count(), 8u);
  EXPECT_EQ(session->first_inf().replay(), 7u);
}

TEST_F(DaemonDeathTest, EveryReplayIsComparedOnceOverManyKilledDaemons) {
  ProducerProcess job({PrintingAndComparing("blk0.out", 4096)});
  std::mt19937 random(1);
  std::uint64_t written = 0;
  for (int round = 0; round < 15; ++round) {
    DaemonProcess daemon(directory_);
    const std::uint64_t before = written;
    for (; written < before + 40 + random() % 200; ++written) job.WriteValue(0, 7);
    if (round % 3 != 0) {
      WaitUntil([&] {
        const auto probe = daemon.Probe(job.key(), "blk0.out");
        return probe && probe->counters().consumed() > before;
      });
    }
    daemon.Kill();
  }
  ASSERT_LT(written, 4096u);
  DaemonProcess last(directory_);
  ASSERT_TRUE(last.WaitForConsumed(job.key(), "blk0.out", written));
  const v1::Verdict verdict = last.Probe(job.key(), "blk0.out")->verdict();
  EXPECT_EQ(verdict.compared(), written);
  EXPECT_EQ(verdict.lost(), 0u);
  EXPECT_EQ(verdict.state(), v1::Verdict::PASS) << verdict.text();
}

TEST_F(DaemonDeathTest, AStoppedDaemonCostsAWaitingWriterOneDeadlineInAll) {
  DaemonProcess daemon(directory_);
  SlotSpec spec = PrintingAndComparing("blk0.out", 4);
  spec.policy = layout::Policy::kWait;
  spec.wait_deadline_ms = 300;
  ProducerProcess job({spec});
  job.WriteValue(0, 7);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 1));
  daemon.Stop();
  constexpr std::uint64_t kReplays = 40;
  for (std::uint64_t i = 0; i < kReplays; ++i) job.WriteValue(0, 7);
  daemon.Signal(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] {
    const auto counters = daemon.Probe(job.key(), "blk0.out")->counters();
    return counters.consumed() + counters.lost_overwritten() == kReplays + 1;
  }));
  const v1::Counters counters = daemon.Probe(job.key(), "blk0.out")->counters();
  EXPECT_GE(counters.wait_ns(), 300'000'000u);
  EXPECT_LT(counters.wait_ns(), 10 * 300'000'000u) << "one deadline, not one for each of 36";
  EXPECT_EQ(counters.overwrote_unread(), kReplays - 4);
  // It works again: the writer waits for this daemon as before.
  const std::uint64_t lost = counters.lost_overwritten();
  for (int i = 0; i < 200; ++i) job.WriteValue(0, 7);
  ASSERT_TRUE(WaitUntil([&] {
    const auto now = daemon.Probe(job.key(), "blk0.out")->counters();
    return now.consumed() + now.lost_overwritten() == kReplays + 201;
  }));
  EXPECT_EQ(daemon.Probe(job.key(), "blk0.out")->counters().lost_overwritten(), lost);
}

TEST_F(DaemonDeathTest, OneOfTwoDaemonsStartedAtOnceRemains) {
  const std::string socket = directory_ / "d.sock";
  const std::vector<std::string> arguments = {"--foreground", "--spawned",  "--socket",
                                              socket,         "--log-file", directory_ / "d.log"};
  const pid_t pids[2] = {SpawnDaemon(arguments), SpawnDaemon(arguments)};
  int gone = -1;
  int status = -1;
  ASSERT_TRUE(WaitUntil([&] {
    for (int i : {0, 1}) {
      if (gone < 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) gone = i;
    }
    return gone >= 0;
  }));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the one that is not needed ends quietly";
  client::Client client;
  ASSERT_TRUE(WaitUntil([&] { return client.Connect({socket, false, "test"}).ok(); }));
  EXPECT_EQ(client.daemon_pid(), pids[1 - gone]);
  kill(pids[1 - gone], SIGTERM);
  waitpid(pids[1 - gone], &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NE(access(socket.c_str(), F_OK), 0) << "it removes its socket";
}

TEST_F(DaemonDeathTest, AStaleSocketIsTakenOver) {
  { DaemonProcess killed(directory_); }
  ASSERT_EQ(access((directory_ / "d.sock").c_str(), F_OK), 0);
  DaemonProcess daemon(directory_);
  EXPECT_EQ(daemon.Status().pid(), daemon.pid());
}

TEST_F(DaemonDeathTest, ADetachedDaemonKeepsNothingOfItsStarter) {
  PipeReader inherited;
  fcntl(inherited.write_fd(), F_SETFD, 0);  // survives exec
  const std::string socket = directory_ / "d.sock";
  const pid_t starter = SpawnDaemon({"--spawned", "--socket", socket});
  int status = -1;
  waitpid(starter, &status, 0);
  ASSERT_EQ(status, 0);
  client::Client client;
  ASSERT_TRUE(client.Connect({socket, false, "test"}).ok()) << "it accepts when its starter ends";
  inherited.CloseWriteEnd();
  EXPECT_TRUE(inherited.ended());
  const std::string proc = "/proc/" + std::to_string(client.daemon_pid());
  EXPECT_EQ(std::filesystem::read_symlink(proc + "/cwd"), "/");
  for (const char* fd : {"0", "1", "2"}) {
    EXPECT_EQ(std::filesystem::read_symlink(proc + "/fd/" + fd), "/dev/null");
  }
  EXPECT_NE(getsid(client.daemon_pid()), getsid(0));
  ASSERT_TRUE(client.Ask<v1::ShutdownReply>(v1::ShutdownRequest()).ok());
  EXPECT_TRUE(WaitUntil([&] { return access(socket.c_str(), F_OK) != 0; }));
}

// Its log is a pipe that nobody reads yet, so it cannot become ready before its starter is gone.
TEST_F(DaemonDeathTest, ADetachedDaemonOutlivesAStarterThatIsKilled) {
  const std::string socket = directory_ / "d.sock", log = directory_ / "log";
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);
  const pid_t starter = SpawnDaemon({"--socket", socket, "--log-file", log});
  ASSERT_TRUE(WaitUntil([&] { return access(socket.c_str(), F_OK) == 0; }));
  kill(starter, SIGKILL);
  waitpid(starter, nullptr, 0);
  const UniqueFd reader(open(log.c_str(), O_RDONLY | O_NONBLOCK));
  client::Client client;
  ASSERT_TRUE(WaitUntil([&] { return client.Connect({socket, false, "test"}).ok(); }));
  EXPECT_TRUE(client.Ask<v1::ShutdownReply>(v1::ShutdownRequest()).ok());
}

TEST_F(DaemonDeathTest, ASignalEndsItAndGivesTheSegmentsBack) {
  ProducerProcess job({PrintingAndComparing("blk0.out", 4)});
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key()).has_value(); }));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.WaitForExit(), 0);
  std::string reason;
  const auto view = ring::SegmentView::Attach(job.segment(), &reason);
  ASSERT_NE(view, nullptr) << reason;
  EXPECT_TRUE(view->BecomeReader());
}

// How often the thread that reads rings has gone to sleep.
std::uint64_t SleepsOf(pid_t daemon) {
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(daemon) + "/task")) {
    std::ifstream file(task.path() / "status");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.find("cgdebug-ingest") == std::string::npos) continue;
    const std::string key = "\nvoluntary_ctxt_switches:";
    return std::stoull(text.substr(text.find(key) + key.size()));
  }
  return 0;
}

TEST_F(DaemonDeathTest, SleepsOnceItHasReadWhatADeadJobLeft) {
  ProducerProcess job({Recording("blk0.out")});
  job.Write(0, 16);
  job.Kill();
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 16));
  const std::uint64_t before = SleepsOf(daemon.pid());
  EXPECT_TRUE(WaitUntil([&] { return SleepsOf(daemon.pid()) >= before + 3; }));
}

TEST_F(DaemonDeathTest, AJobThatDiedLongAgoIsShownToWhoeverStartsADaemonNow) {
  ProducerProcess job({Recording("a")});
  job.Kill();
  const UniqueFd file(open(ring::ShmPath(job.segment()).c_str(), O_RDWR));
  const std::int64_t long_ago_ns = 1;
  ASSERT_EQ(pwrite(file.get(), &long_ago_ns, sizeof(long_ago_ns),
                   offsetof(layout::SegmentHeader, created_ns)),
            static_cast<ssize_t>(sizeof(long_ago_ns)));
  DaemonProcess daemon(directory_);
  EXPECT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(job.key());
    return session && session->state() == v1::Session::DIED;
  }));
}

TEST_F(DaemonDeathTest, EndsWhenIdle) {
  const std::string socket = directory_ / "d.sock";
  const pid_t daemon = SpawnDaemon({"--foreground", "--socket", socket, "--idle-timeout", "200ms"});
  int status = -1;
  ASSERT_EQ(waitpid(daemon, &status, 0), daemon);
  EXPECT_EQ(status, 0);
  EXPECT_NE(access(socket.c_str(), F_OK), 0);
}

TEST_F(DaemonDeathTest, IsNotIdleWhileARecordingWaitsForItsJob) {
  DaemonProcess daemon(directory_, {"--idle-timeout", "2s"});
  v1::RecordStartRequest request;
  request.set_directory(directory_ / "a.cgrec");
  ASSERT_TRUE(daemon.Connect().Ask<v1::RecordStartReply>(request).ok());
  EXPECT_FALSE(WaitUntil([&] { return !daemon.Running(); }, std::chrono::seconds(4)));
  ASSERT_TRUE(daemon.Connect().Ask<v1::RecordStopReply>(v1::RecordStopRequest()).ok());
  EXPECT_EQ(daemon.WaitForExit(), 0);
}

TEST_F(DaemonDeathTest, EndsWithTheProcessThatItWasGiven) {
  const pid_t other = fork();
  if (other == 0) {
    while (true) pause();
  }
  DaemonProcess daemon(directory_, {"--exit-with", std::to_string(other)});
  EXPECT_TRUE(daemon.Running());
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  EXPECT_EQ(daemon.WaitForExit(), 0);
}

// --- files that are not what they seem -----------------------------------------------------------

std::string FakeSegment(char digit) {
  return ring::ShmPath("cgdebug-" + std::to_string(geteuid()) + "-" + std::string(32, digit));
}

std::string ReasonFor(DaemonProcess& daemon, const std::string& path) {
  std::string reason;
  WaitUntil([&] {
    const v1::StatusReply status = daemon.Status();
    for (const v1::Skipped& skipped : status.skipped()) {
      if (skipped.path() == path) reason = skipped.reason();
    }
    return !reason.empty();
  });
  return reason;
}

TEST_F(DaemonDeathTest, SkipsRubbishAndSaysWhy) {
  std::ofstream(FakeSegment('1')) << "short";
  std::ofstream(FakeSegment('2')) << std::string(layout::kControlBytes, 'x');
  {
    layout::SegmentHeader header = {};
    header.magic = layout::kSegmentMagic;
    header.abi_major = layout::kAbiMajor + 1;
    std::ofstream file(FakeSegment('3'));
    file.write(reinterpret_cast<const char*>(&header), sizeof(header));
    file << std::string(layout::kControlBytes, '\0');
  }
  DaemonProcess daemon(directory_);
  EXPECT_THAT(ReasonFor(daemon, FakeSegment('1')), HasSubstr("too short"));
  EXPECT_THAT(ReasonFor(daemon, FakeSegment('2')), HasSubstr("not a segment"));
  EXPECT_THAT(ReasonFor(daemon, FakeSegment('3')),
              HasSubstr("layout version " + std::to_string(layout::kAbiMajor + 1)));
  ProducerProcess job({PrintingAndComparing("", 4), PrintingAndComparing("good", 4)});
  EXPECT_THAT(ReasonFor(daemon, ring::ShmPath(job.segment()) + " slot 0"), HasSubstr("empty name"));
  job.WriteValue(1, 7);
  EXPECT_TRUE(daemon.WaitForConsumed(job.key(), "good", 1)) << "the slot beside it is read";
  for (const char digit : {'1', '2', '3'}) unlink(FakeSegment(digit).c_str());
  EXPECT_TRUE(WaitUntil([&] { return daemon.Status().skipped_size() == 1; }));
}

TEST_F(DaemonDeathTest, SurvivesAnExtentThatIsCutOffUnderItsEyes) {
  DaemonProcess daemon(directory_);
  ProducerProcess victim({PrintingAndComparing("blk0.out", 4)});
  victim.WriteValue(0, 7);
  ASSERT_TRUE(daemon.WaitForConsumed(victim.key(), "blk0.out", 1));
  ASSERT_EQ(truncate(ring::ShmPath(victim.segment() + ".1").c_str(), 0), 0);
  EXPECT_THAT(ReasonFor(daemon, ring::ShmPath(victim.segment())), HasSubstr("cut off"));
  EXPECT_EQ(daemon.Get(victim.key(), "blk0.out").reply.snapshot().stats().max(), 7)
      << "what was read before stays readable";
  ProducerProcess other({PrintingAndComparing("blk1.out", 4)});
  other.WriteValue(0, 7);
  EXPECT_TRUE(daemon.WaitForConsumed(other.key(), "blk1.out", 1));
}

TEST_F(DaemonDeathTest, SurvivesAJobThatWritesRubbishOverItsSharedMemory) {
  DaemonProcess daemon(directory_, {"--log-level", "off"});
  ProducerProcess good({PrintingAndComparing("good", 4)});
  std::uint64_t replays = 0;
  for (int round = 0; round < 8; ++round) {
    ProducerProcess bad({PrintingAndComparing("a", 4), PrintingAndComparing("b", 64),
                         PrintingAndComparing("c", 1)});
    for (const std::uint32_t slot : {0, 1, 2}) bad.WriteValue(slot, 7);
    for (int burst = 0; burst < 20; ++burst) {
      bad.Scribble(200);
      good.WriteValue(0, 7);
      ++replays;
      ASSERT_TRUE(daemon.WaitForConsumed(good.key(), "good", replays));
    }
    bad.Kill();
    ASSERT_TRUE(WaitUntil([&] {
      const auto session = daemon.Session(bad.key());
      return !session || session->state() == v1::Session::DIED;
    }));
  }
  EXPECT_TRUE(daemon.Running());
  EXPECT_EQ(daemon.Probe(good.key(), "good")->verdict().state(), v1::Verdict::PASS);
}

}  // namespace
}  // namespace cgdebug::test
