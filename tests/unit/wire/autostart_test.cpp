#include "daemon/core/endpoint/autostart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>

#include "daemon/core/endpoint/endpoint.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::wire {
namespace {

using ::testing::HasSubstr;
using testing_support::ReadText;
using testing_support::TempDir;

class AutostartTest : public ::testing::Test {
 protected:
  void TearDown() override {
    Result<UniqueFd> fd = TryConnect(socket_);
    if (!fd.ok() || !*fd) return;
    const pid_t daemon = CheckPeer(fd->get())->pid;
    ::kill(daemon, SIGKILL);
    ::waitpid(daemon, nullptr, 0);
  }
  std::string Script(const std::string& text) {
    const std::string path = dir_ / "script";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ::chmod(path.c_str(), 0700);
    return path;
  }
  Result<UniqueFd> Start(const std::string& executable,
                         std::chrono::milliseconds timeout = std::chrono::seconds(120)) {
    AutostartOptions options;
    options.executable = executable;
    options.timeout = timeout;
    return ConnectOrStart(socket_, options, &started_);
  }

  TempDir dir_;
  const std::string socket_ = dir_ / "daemon.sock";
  bool started_ = false;
};

TEST_F(AutostartTest, StartsADaemonWhenNobodyListensAndOnlyThen) {
  const Result<UniqueFd> first = Start(CGDEBUG_FAKE_DAEMON);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_TRUE(*first);
  EXPECT_TRUE(started_);
  const Result<UniqueFd> second = Start(CGDEBUG_FAKE_DAEMON);
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_FALSE(started_);
  EXPECT_EQ(CheckPeer(first->get())->pid, CheckPeer(second->get())->pid);
}

TEST_F(AutostartTest, DaemonIsDetachedFromItsStarter) {
  const Result<UniqueFd> fd = Start(CGDEBUG_FAKE_DAEMON);
  ASSERT_TRUE(fd.ok()) << fd.error().message;
  const pid_t daemon = CheckPeer(fd->get())->pid;
  EXPECT_NE(::getsid(daemon), ::getsid(0));
  const std::string proc = "/proc/" + std::to_string(daemon);
  EXPECT_EQ(std::filesystem::read_symlink(proc + "/cwd"), "/");
  for (const char* fd : {"0", "1", "2"}) {
    EXPECT_EQ(std::filesystem::read_symlink(proc + "/fd/" + fd), "/dev/null");
  }
}

TEST_F(AutostartTest, ManyClientsAtOnceEndWithOneDaemon) {
  std::vector<std::thread> clients;
  std::vector<pid_t> daemons(8);
  for (pid_t& daemon : daemons) {
    clients.emplace_back([this, &daemon] {
      AutostartOptions options;
      options.executable = CGDEBUG_FAKE_DAEMON;
      options.timeout = std::chrono::seconds(120);
      bool started = false;
      const Result<UniqueFd> fd = ConnectOrStart(socket_, options, &started);
      daemon = fd.ok() && *fd ? CheckPeer(fd->get())->pid : -1;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(daemons[0], 0);
  EXPECT_EQ(std::count(daemons.begin(), daemons.end(), daemons[0]), 8);
  const std::string starts = ReadText(socket_ + ".starts");
  EXPECT_EQ(std::count(starts.begin(), starts.end(), '\n'), 1);
}

TEST_F(AutostartTest, FailureShowsWhatTheDaemonSaidAndWhereItsLogIs) {
  const Result<UniqueFd> fd = Start(Script("echo cannot open the state directory >&2; exit 3"));
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(fd.error().message, HasSubstr("exit code 3"));
  EXPECT_THAT(fd.error().message, HasSubstr("cannot open the state directory"));
  EXPECT_THAT(fd.error().message, HasSubstr(LogPath(socket_)));
}

TEST_F(AutostartTest, AProgramThatNeverSaysItIsReadyEndsAtTheDeadlineWithWhatItSaid) {
  const Result<UniqueFd> fd =
      Start(Script("echo $$ > " + (dir_ / "pid") + "; echo still loading; exec sleep 60"),
            std::chrono::seconds(2));
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(fd.error().message, HasSubstr("did not say within"));
  EXPECT_THAT(fd.error().message, HasSubstr("still loading"));
  EXPECT_EQ(::kill(std::stoi(ReadText(dir_ / "pid")), 0), -1) << "it was left running";
}

TEST_F(AutostartTest, ShowsOnlyWhatThisStartWroteIntoTheLog) {
  std::ofstream(LogPath(socket_)) << "an old complaint\n";
  const Result<UniqueFd> fd = Start(Script("echo a new complaint >&2; exit 1"));
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(fd.error().message, HasSubstr("a new complaint"));
  EXPECT_THAT(fd.error().message, Not(HasSubstr("an old complaint")));
}

TEST_F(AutostartTest, DaemonThatNeverAcceptsEndsAtTheDeadline) {
  const std::string program = Script("exit 0");
  std::string problem;
  const auto is_told = [&] {  // on a slow machine the program itself may be late
    const Result<UniqueFd> fd = Start(program, std::chrono::milliseconds(50));
    problem = fd.ok() ? "it was started" : fd.error().message;
    return problem.find("accepted no connection within 50 ms") != std::string::npos;
  };
  EXPECT_TRUE(test::WaitUntil(is_told)) << problem;
}

TEST_F(AutostartTest, MissingExecutableIsNamed) {
  const Result<UniqueFd> fd = Start(dir_ / "nothing-here");
  ASSERT_FALSE(fd.ok());
  EXPECT_THAT(fd.error().message, HasSubstr("nothing-here"));
}

TEST_F(AutostartTest, StaleSocketFileCountsAsNobody) {
  {
    UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(socket_.begin(), socket_.end(), address.sun_path);
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  const Result<UniqueFd> fd = TryConnect(socket_);
  ASSERT_TRUE(fd.ok());
  EXPECT_FALSE(*fd);
}

TEST(Endpoint, LogLiesBesideTheSocket) {
  EXPECT_EQ(LogPath("/run/user/0/cgdebug/daemon.sock"), "/run/user/0/cgdebug/daemon.log");
  EXPECT_EQ(LogPath("/tmp/x"), "/tmp/x.log");
}

}  // namespace
}  // namespace cgdebug::wire
