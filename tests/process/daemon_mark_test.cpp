// One daemon per user and /dev/shm, and what it inherits from its starter.
#include "daemon/core/endpoint/daemon_mark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::HasSubstr;

class DaemonMarkTest : public testing::Test {
 protected:
  DaemonMarkTest() {
    unsetenv("CGDEBUG_SOCKET");
    for (const char* name : {"one", "two"}) std::filesystem::create_directory(directory_ / name);
    RunIn("one");
  }
  ~DaemonMarkTest() override {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("CGDEBUG_DAEMON");
  }
  // Sets the directory for daemons and clients from here on.
  void RunIn(const std::string& name) {
    const std::string path = directory_ / name;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
  }
  // Returns when it answers: it is marked before its socket exists.
  void StartDaemon() {
    pid_ = SpawnDaemon({"--foreground", "--log-file", directory_ / "log"});
    ASSERT_TRUE(WaitUntil([&] { return AnsweringPid() == pid_; }));
  }
  pid_t AnsweringPid() {
    client::Client client;
    return client.Connect({"", false, "test"}).ok() ? client.daemon_pid() : 0;
  }

  testing_support::TempDir directory_;
  pid_t pid_ = 0;
};

TEST_F(DaemonMarkTest, ClientsFindTheUsersDaemonWhateverTheirRuntimeDirectoryIs) {
  StartDaemon();
  RunIn("two");
  EXPECT_EQ(AnsweringPid(), pid_);
}

TEST_F(DaemonMarkTest, ASecondDaemonOfTheUserLeaves) {
  StartDaemon();
  RunIn("two");
  const pid_t second = SpawnDaemon({"--foreground", "--spawned"});
  int status = -1;
  ASSERT_EQ(waitpid(second, &status, 0), second);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(MarkedSocket("/dev/shm"), (directory_ / "one") + "/cgdebug/daemon.sock");
}

TEST_F(DaemonMarkTest, AKilledDaemonLeavesNoMarkThatHolds) {
  StartDaemon();
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  EXPECT_EQ(MarkedSocket("/dev/shm"), "");
  RunIn("two");
  StartDaemon();
}

TEST_F(DaemonMarkTest, ADaemonOnAChosenSocketLeavesOthersJobsToTheUsersDaemon) {
  ProducerProcess job({Recording("a")});
  job.Write(0, 2);
  StartDaemon();
  DaemonProcess chosen(directory_);
  EXPECT_FALSE(chosen.Session(job.key()));
  std::string reason;
  ASSERT_TRUE(WaitUntil([&] {
    const v1::StatusReply status = chosen.Status();
    if (status.skipped_size() == 1) reason = status.skipped(0).reason();
    return !reason.empty();
  }));
  EXPECT_THAT(reason, HasSubstr("--socket '" + MarkedSocket("/dev/shm") + "'"));
  client::Client client;
  ASSERT_TRUE(client.Connect({"", false, "test"}).ok());
  EXPECT_EQ(client.Ask<v1::SessionsReply>(v1::SessionsRequest())->sessions_size(), 1);
}

TEST_F(DaemonMarkTest, ADaemonOnAChosenSocketLeavesThemAlsoBeforeTheUsersDaemonReadsThem) {
  StartDaemon();
  ASSERT_EQ(kill(pid_, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  ProducerProcess job({Recording("a")});
  job.Write(0, 2);
  DaemonProcess chosen(directory_);
  EXPECT_FALSE(chosen.Session(job.key()));
  ASSERT_EQ(kill(pid_, SIGCONT), 0);
  client::Client client;
  ASSERT_TRUE(client.Connect({"", false, "test"}).ok());
  EXPECT_TRUE(WaitUntil(
      [&] { return client.Ask<v1::SessionsReply>(v1::SessionsRequest())->sessions_size() == 1; }));
}

std::size_t CountInUnixSockets(const std::string& path) {
  std::ifstream file("/proc/net/unix");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.ends_with(path) ? 1 : 0;
  return count;
}

TEST_F(DaemonMarkTest, AClientWhoseDaemonIsKilledBeforeItAnswersGetsAnother) {
  setenv("CGDEBUG_DAEMON", CGDEBUG_DAEMON_BINARY, 1);
  StartDaemon();
  const std::string socket = MarkedSocket("/dev/shm");
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);
  const std::size_t before = CountInUnixSockets(socket);
  client::Client client;
  Result<void> connected = Error{""};
  std::thread connecting([&] { connected = client.Connect({"", true, "test"}); });
  WaitUntil([&] { return CountInUnixSockets(socket) > before; });
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  connecting.join();
  ASSERT_TRUE(connected.ok()) << connected.error().message;
  EXPECT_NE(client.daemon_pid(), pid_);
  pid_ = 0;
  v1::ShutdownRequest end;
  EXPECT_TRUE(client.Ask<v1::ShutdownReply>(end).ok());
  EXPECT_TRUE(WaitUntil([&] { return MarkedSocket("/dev/shm").empty(); }));
}

TEST_F(DaemonMarkTest, ADetachedDaemonIsNotBoundToTheCoresAndLimitsOfItsStarter) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  const std::string socket = directory_ / "d.sock";
  const pid_t starter = SpawnDaemon({"--spawned", "--socket", socket},
                                    "ulimit -S -n 64 && taskset -pc 0 $$ > /dev/null");
  int status = -1;
  ASSERT_EQ(waitpid(starter, &status, 0), starter);
  ASSERT_EQ(status, 0);
  client::Client client;
  ASSERT_TRUE(client.Connect({socket, false, "test"}).ok());
  const std::string proc = "/proc/" + std::to_string(client.daemon_pid());
  const auto line = [&](const std::string& file, const std::string& key) {
    std::ifstream in(proc + file);
    std::string text;
    while (std::getline(in, text) && !text.starts_with(key)) {
    }
    return text;
  };
  EXPECT_THAT(line("/status", "Cpus_allowed_list:"), testing::Not(testing::EndsWith("\t0")));
  EXPECT_THAT(line("/limits", "Max open files"), testing::Not(HasSubstr(" 64  ")));
  EXPECT_TRUE(client.Ask<v1::ShutdownReply>(v1::ShutdownRequest()).ok());
}

}  // namespace
}  // namespace cgdebug::test
