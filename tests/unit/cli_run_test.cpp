// `run`: the child process, the exit code and the summary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/cli/exit_codes.h"
#include "client/cli/job.h"
#include "client/cli/run_summary.h"
#include "tests/support/fake_daemon.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;
using testing_support::MakeSession;

RunSummary HealthyRun() {
  RunSummary summary;
  summary.sessions = {MakeSession("3f2a91c0", 0), MakeSession("99999999", 1)};
  summary.complete = true;
  return summary;
}

v1::FirstNonfinite First(const std::string& probe, std::uint64_t replay) {
  v1::FirstNonfinite first;
  first.set_present(true);
  first.set_probe(probe);
  first.set_replay(replay);
  first.set_count(3);
  return first;
}

TEST(RunExitCode, IsTheJobsOwn) {
  RunSummary summary = HealthyRun();
  EXPECT_EQ(ExitCodeOf(summary, {}), 0);
  summary.job_exit_code = 137;
  EXPECT_EQ(ExitCodeOf(summary, {}), 137);
}

TEST(RunExitCode, FailOnMakesAFindingOneAndOnlyWhatWasAskedFor) {
  RunSummary summary = HealthyRun();
  *summary.sessions[1].mutable_first_nan() = First("x", 3);
  summary.sessions[1].set_nonfinite_probes(1);
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitOk);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitFound);
  EXPECT_EQ(ExitCodeOf(summary, {.inf = true}), kExitOk);
  summary.sessions[0].set_failed_probes(1);
  EXPECT_EQ(ExitCodeOf(summary, {.compare = true}), kExitFound);
}

TEST(RunExitCode, NothingFoundOverAGapIsInconclusive) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].mutable_counters()->set_lost_overwritten(1);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitOk);
  summary = HealthyRun();
  summary.complete = false;
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
}

TEST(RunExitCode, WhatWasNotComparedIsNoPassOfAComparison) {
  RunSummary summary = HealthyRun();
  summary.not_compared_probes = 1;
  EXPECT_EQ(ExitCodeOf(summary, {.compare = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitOk);
  const std::string text = SummaryText(summary, {.compare = true}, Style());
  EXPECT_THAT(text, HasSubstr("1 probe had snapshots that were not compared."));
  EXPECT_THAT(text, HasSubstr("but snapshots were not compared: exit 3."));
  EXPECT_EQ(SummaryJson(summary)["not_compared_probes"], 1);
}

TEST(RunExitCode, NoProbeAtAllIsNoPass) {
  RunSummary summary;
  EXPECT_EQ(ExitCodeOf(summary, {.compare = true}), kExitNoMatch);
}

TEST(RunSummary, NamesTheEarliestNanOverTheRanksAndWhatToType) {
  RunSummary summary = HealthyRun();
  *summary.sessions[0].mutable_first_nan() = First("late", 1204);
  *summary.sessions[1].mutable_first_nan() = First("early", 7);
  summary.sessions[0].set_nonfinite_probes(1);
  summary.sessions[1].set_nonfinite_probes(1);
  const std::string text = SummaryText(summary, {}, Style());
  EXPECT_THAT(text, HasSubstr("job exited 0 after 1 204 replays. 4 816 snapshots read, 0 lost."));
  EXPECT_THAT(text, HasSubstr("2 probes saw non-finite values."));
  EXPECT_THAT(text, HasSubstr("first NaN: early @7, 3 elements"));
  EXPECT_THAT(NextCommands(summary),
              ::testing::Contains("cgdebug-cli show -s 99999999 'early@7' --where nonfinite"));
}

class JobTest : public ::testing::Test {
 protected:
  int Run(const std::string& script) {
    const Result<void> started = job_.Start(
        {"sh", "-c", script}, {{"CGDEBUG_RUN_ID", "run-1"}, {"OUT", dir_ / "out"}}, signals_);
    EXPECT_TRUE(started.ok());
    job_.Wait(signals_);
    return job_.exit_code();
  }

  testing_support::TempDir dir_;
  JobSignals signals_;
  Job job_;
};

TEST_F(JobTest, ExitCodeIsPassedOn) { EXPECT_EQ(Run("exit 7"), 7); }

TEST_F(JobTest, DeathBySignalIsItsNumberAbove128) {
  EXPECT_EQ(Run("kill -KILL $$"), 128 + SIGKILL);
  EXPECT_EQ(job_.signal(), SIGKILL);
}

TEST_F(JobTest, EnvironmentIsOursWithTheAdditions) {
  ::setenv("CGDEBUG_RUN_ID", "stale", 1);
  EXPECT_EQ(Run("echo \"$CGDEBUG_RUN_ID $HOME\" > \"$OUT\""), 0);
  ::unsetenv("CGDEBUG_RUN_ID");
  EXPECT_EQ(testing_support::ReadText(dir_ / "out"),
            "run-1 " + std::string(::getenv("HOME")) + "\n");
}

TEST_F(JobTest, CommandThatDoesNotExistIs127) {
  EXPECT_FALSE(job_.Start({"/nonexistent/cgdebug-job"}, {}, signals_).ok());
  EXPECT_EQ(job_.exit_code(), 127);
}

TEST_F(JobTest, SignalsReachTheJob) {
  const Result<void> started =
      job_.Start({"sh", "-c",
                  "trap 'exit 42' TERM; echo ready > \"$OUT.tmp\"; mv \"$OUT.tmp\" \"$OUT\"; "
                  "while :; do sleep 0.05; done"},
                 {{"OUT", dir_ / "out"}}, signals_);
  ASSERT_TRUE(started.ok());
  std::thread sender([&] {
    while (!std::filesystem::exists(dir_ / "out")) std::this_thread::yield();
    ::kill(::getpid(), SIGTERM);
  });
  job_.Wait(signals_);
  sender.join();
  EXPECT_EQ(job_.exit_code(), 42);
}

TEST_F(JobTest, JobStartsWithTheSignalMaskWeHadBefore) {
  EXPECT_EQ(Run("grep SigBlk /proc/self/status > \"$OUT\""), 0);
  EXPECT_THAT(testing_support::ReadText(dir_ / "out"), HasSubstr("0000000000000000"));
}

TEST_F(JobTest, JobDoesNotInheritThatWeIgnoreClosedPipes) {
  ::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(Run("kill -PIPE $$; exit 0"), 128 + SIGPIPE);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace cgdebug::cli
