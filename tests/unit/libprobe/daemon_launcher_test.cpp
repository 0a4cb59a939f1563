// StartDaemon() with programs that only pretend to be the daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/ring/probe_fixture.h"
#include "tests/support/temp_dir.h"

namespace cgdebug {
namespace {

using test::Line;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Launcher : public ::testing::Test {
 protected:
  // A program that counts its starts and then runs `script`.
  void Pretend(const std::string& script) {
    std::ofstream(program_) << "#!/bin/sh\necho start >>" << starts_ << "\n" << script << "\n";
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
  }
  std::string starts() const {
    return std::filesystem::exists(starts_) ? testing_support::ReadText(starts_) : "";
  }
  // `job` in a process of its own, which asks for a daemon once.
  template <typename Job>
  std::string InJob(const char* setting, Job&& job) {
    test::ChildProcess child([&](const Line& line) {
      setenv("CGDEBUG", setting, 1);
      setenv("CGDEBUG_DAEMON", program_.c_str(), 1);
      try {
        line.Send(job());
      } catch (const ProbeError& error) {
        line.Send(error.what());
      }
      setenv("CGDEBUG", "0", 1);
      Finish(std::chrono::seconds(0));
      return 0;
    });
    return child.line().Receive();
  }
  std::string Start(const char* setting = "auto") {
    return InJob(setting, [] { return StartDaemon(), "started"; });
  }

  testing_support::TempDir directory_;
  std::string program_ = directory_ / "cgdebug-daemon";
  std::string starts_ = directory_ / "starts";
};

TEST_F(Launcher, RunsTheProgramThatIsNamed) {
  Pretend("exit 0");
  EXPECT_EQ(Start(), "started");
  EXPECT_EQ(starts(), "start\n");
}

TEST_F(Launcher, AProgramThatFailsIsNamedWithItsExitCode) {
  Pretend("exit 3");
  EXPECT_THAT(Start(), AllOf(HasSubstr(program_), HasSubstr("exit code 3"),
                             HasSubstr("cgdebug-daemon --foreground")));
}

TEST_F(Launcher, AProgramThatCrashesIsNotTakenForOneThatRuns) {
  Pretend("kill -SEGV $$");
  EXPECT_THAT(Start(), AllOf(HasSubstr(program_), HasSubstr("signal 11")));
}

TEST_F(Launcher, AProgramThatIsNotThereIsNamed) {
  EXPECT_THAT(Start(), AllOf(HasSubstr(program_), HasSubstr("No such file")));
}

TEST_F(Launcher, CGDEBUG0StartsNothing) {
  Pretend("exit 0");
  EXPECT_EQ(Start("0"), "started");
  EXPECT_EQ(starts(), "");
}

TEST_F(Launcher, CGDEBUG1StartsItWithTheFirstProbeThatPrintsOrCompares) {
  Pretend("exit 0");
  EXPECT_EQ(InJob("1",
                  [&] {
                    Probe record("r", test::Always());
                    if (!starts().empty()) return "too early";
                    Probe first("p", test::AlwaysPrint());
                    Probe second("q", test::AlwaysPrint());
                    return "";
                  }),
            "");
  EXPECT_EQ(starts(), "start\n");
}

TEST_F(Launcher, CGDEBUG1StartsItForAProbeThatRecordsToDisk) {
  Pretend("exit 0");
  EXPECT_EQ(InJob("1",
                  [&] {
                    ProbeOptions options = test::Always();
                    options.record->to_disk = true;
                    Probe probe("p", options);
                    return "";
                  }),
            "");
  EXPECT_EQ(starts(), "start\n");
}

TEST_F(Launcher, AProbeWorksWithoutTheDaemonThatCouldNotBeStarted) {
  Pretend("exit 3");
  EXPECT_THAT(InJob("1",
                    [&] {
                      Probe probe("p", test::AlwaysPrint());
                      probe.Observe(test::Cpu({1}));
                      return probe.Status().last_error;
                    }),
              AllOf(HasSubstr("probe 'p'"), HasSubstr("exit code 3")));
}

}  // namespace
}  // namespace cgdebug
