#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "client/cli/doctor/checks.h"
#include "daemon/core/base/unique_fd.h"
#include "proto/layout/segment_layout.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = 1ull << 30;

TEST(DoctorShm, DockersDefaultIsSmallAndTheFixIsDockers) {
  const Check check = JudgeShm({true, true, 64u << 20, 60u << 20, "docker"});
  EXPECT_EQ(check.level, Level::kWarn);
  EXPECT_THAT(check.fix, HasSubstr("--shm-size"));
}

TEST(DoctorShm, DockersDefaultSaysHowManyModulesHaveRoom) {
  const std::string text = JudgeShm({true, true, 64u << 20, 60u << 20, "docker"}).text;
  EXPECT_THAT(text, HasSubstr("enough for run --watch '*' of 7 552 modules (with -o "));
}

TEST(DoctorShm, AStatedNumberOfModulesIsHeldAgainstTheRoomThatItNeeds) {
  ShmFacts facts{true, true, 64u << 20, 60u << 20, "docker", 258};
  EXPECT_EQ(JudgeShm(facts).level, Level::kOk);
  EXPECT_THAT(JudgeShm(facts).text, HasSubstr("enough for run --watch '*' of 258 modules"));
  facts.modules = 5000;
  EXPECT_EQ(JudgeShm(facts).level, Level::kWarn) << "statistics fit, a recorded run does not";
  EXPECT_THAT(JudgeShm(facts).text, HasSubstr("too little for run --watch '*' -o"));
  facts.modules = 50000;
  EXPECT_EQ(JudgeShm(facts).level, Level::kFail);
  EXPECT_THAT(JudgeShm(facts).fix, HasSubstr("--shm-size"));
}

TEST(DoctorJobs, AJobSaysWhatItHoldsAndFailsIfItsProbesFoundNoRoom) {
  live::Session fits, refused, ended;
  fits.label = "a-1", refused.label = "b-2", ended.label = "c-3";
  fits.slots = 40, refused.slots = 42, ended.slots = 1;
  fits.shm_bytes = refused.shm_bytes = 4u << 20;
  ended.state = live::SessionState::kDied;
  refused.not_seen.push_back({.kind = layout::NotSeenKind::kRefused,
                              .count = 216,
                              .of = 258,
                              .name = "fwd/bad",
                              .reason = "/dev/shm is too small: 1.0 MiB more are needed"});
  const std::vector<Check> checks = JudgeJobs({fits, refused, ended}, 60u << 20);
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[0].level, Level::kOk);
  EXPECT_EQ(checks[0].text, "a-1 holds 4 MiB for 40 tensors");
  EXPECT_EQ(checks[1].level, Level::kFail);
  EXPECT_THAT(checks[1].text, HasSubstr("216 of 258 probes are not watched"));
  EXPECT_EQ(JudgeJobs({fits}, 1u << 20).at(0).level, Level::kWarn) << "a second one has no room";
}

TEST(DoctorShm, KubernetesHasAnotherFix) {
  EXPECT_THAT(JudgeShm({true, true, 64u << 20, 60u << 20, "kubernetes"}).fix,
              HasSubstr("emptyDir"));
}

TEST(DoctorShm, NearlyFullMissingOrReadOnlyFails) {
  EXPECT_EQ(JudgeShm({true, true, 100 * kGiB, kGiB, ""}).level, Level::kFail);
  EXPECT_EQ(JudgeShm({false, false, 0, 0, ""}).level, Level::kFail);
  EXPECT_EQ(JudgeShm({true, false, kGiB, kGiB, ""}).level, Level::kFail);
  EXPECT_EQ(JudgeShm({true, true, 100 * kGiB, 90 * kGiB, ""}).level, Level::kOk);
}

TEST(DoctorRemoveIpc, WarnsARegularUserWithoutLingering) {
  EXPECT_EQ(JudgeRemoveIpc("", true, 1000, false).level, Level::kWarn);
  EXPECT_EQ(JudgeRemoveIpc("#RemoveIPC=no\n", true, 1000, false).level, Level::kWarn);
  EXPECT_EQ(JudgeRemoveIpc("[Login]\nRemoveIPC=no\n", true, 1000, false).level, Level::kOk);
  EXPECT_EQ(JudgeRemoveIpc("RemoveIPC=no\nRemoveIPC=yes\n", true, 1000, false).level, Level::kWarn);
  EXPECT_EQ(JudgeRemoveIpc("", true, 1000, true).level, Level::kOk);
  EXPECT_EQ(JudgeRemoveIpc("", true, 0, false).level, Level::kOk);
  EXPECT_EQ(JudgeRemoveIpc("", false, 1000, false).level, Level::kOk);
}

TEST(DoctorNvidia, ReadsTheVersionOfClosedAndOpenModules) {
  const Check closed = JudgeNvidia(
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n");
  EXPECT_EQ(closed.level, Level::kOk);
  EXPECT_EQ(closed.text, "550.54.14");
  const Check open = JudgeNvidia(
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n");
  EXPECT_EQ(open.text, "580.95.05");
  EXPECT_EQ(JudgeNvidia("Kernel Module  470.256.02  x").level, Level::kWarn);
  EXPECT_EQ(JudgeNvidia("").level, Level::kWarn);
}

TEST(DoctorPython, EachLineIsACheck) {
  const auto checks = JudgePython(
      "python3",
      "a warning of torch\n"
      R"({"name": "torch", "level": "WARN", "text": "not installed", "fix": "pip install torch"})"
      "\n",
      false);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].name, "torch");
  EXPECT_EQ(checks[0].level, Level::kWarn);
  EXPECT_EQ(checks[0].fix, "pip install torch");
}

TEST(DoctorPython, OneThatFailsIsNamedWithItsLastLine) {
  const auto checks = JudgePython("/x/python3", "Traceback\nModuleNotFoundError: cgdebug\n", true);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].level, Level::kWarn);
  EXPECT_THAT(checks[0].text, HasSubstr("/x/python3"));
  EXPECT_THAT(checks[0].text, HasSubstr("ModuleNotFoundError: cgdebug"));
  EXPECT_THAT(JudgePython("p", "", true)[0].text, HasSubstr("no output"));
}

class DoctorSegmentsTest : public ::testing::Test {
 protected:
  std::string Segment(const std::string& uuid) {
    const std::string path = dir_ / ("cgdebug-" + std::to_string(::geteuid()) + "-" + uuid);
    std::ofstream(path) << std::string(4096, 'x');
    std::ofstream(path + ".1") << std::string(8192, 'x');
    return path;
  }
  // A process that holds a record lock on `byte` of `path` until it is let go.
  void LockInAnotherProcess(const std::string& path, std::int64_t byte) {
    int ready[2];
    int hold[2];
    ASSERT_EQ(::pipe(ready), 0);
    ASSERT_EQ(::pipe(hold), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(hold[1]);
      const int fd = ::open(path.c_str(), O_RDWR);
      struct flock lock {};
      lock.l_type = F_WRLCK;
      lock.l_start = byte;
      lock.l_len = 1;
      char go = ::fcntl(fd, F_SETLK, &lock) == 0 ? 'y' : 'n';
      (void)!::write(ready[1], &go, 1);
      (void)!::read(hold[0], &go, 1);
      ::_exit(0);
    }
    ::close(hold[0]);
    ::close(ready[1]);
    char locked = 0;
    ASSERT_EQ(::read(ready[0], &locked, 1), 1);
    ASSERT_EQ(locked, 'y');
    ::close(ready[0]);
    holders_.push_back({pid, UniqueFd(hold[1])});
  }
  void TearDown() override {
    for (auto& [pid, hold] : holders_) {
      hold.reset();
      ::waitpid(pid, nullptr, 0);
    }
  }

  testing_support::TempDir dir_;
  std::vector<std::pair<pid_t, UniqueFd>> holders_;
};

TEST_F(DoctorSegmentsTest, LiveProducerIsNotStale) {
  LockInAnotherProcess(Segment("aaaa"), layout::kProducerLockByte);
  const std::vector<Check> checks = CheckStaleSegments(dir_.path());
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_THAT(checks[0].text, HasSubstr("1 job process alive"));
}

TEST_F(DoctorSegmentsTest, ADeadJobThatADaemonHoldsIsNotAWarning) {
  LockInAnotherProcess(Segment("aaaa"), layout::kReaderLockByte);
  const std::vector<Check> checks = CheckStaleSegments(dir_.path());
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[1].level, Level::kOk);
  EXPECT_THAT(checks[1].text, HasSubstr("pid " + std::to_string(holders_[0].first)));
}

TEST_F(DoctorSegmentsTest, ADeadJobThatNobodyHoldsIsAWarningWithItsSizeAndPath) {
  const std::string path = Segment("aaaa");
  std::ofstream(dir_ / "cgdebug-99999-bbbb") << "another user's";
  const std::vector<Check> checks = CheckStaleSegments(dir_.path());
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[1].level, Level::kWarn);
  EXPECT_THAT(checks[1].text, HasSubstr("1 left rings"));
  EXPECT_THAT(checks[1].fix, HasSubstr("cgdebug-cli ps --prune"));
}

TEST_F(DoctorSegmentsTest, AMarkThatSomebodyElseMadeIsSaid) {
  const std::string user = std::to_string(::geteuid());
  std::ofstream(dir_ / ("cgdebug-reader-" + user)) << "";
  EXPECT_TRUE(CheckMarks(dir_.path()).empty());
  std::filesystem::create_directory(dir_ / ("cgdebug-recorder-" + user));
  const std::vector<Check> checks = CheckMarks(dir_.path());
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].level, Level::kFail);
  EXPECT_THAT(checks[0].text, HasSubstr("/cgdebug-recorder-" + user + " is no file: "));
  EXPECT_THAT(checks[0].text, HasSubstr("may lose snapshots"));
  EXPECT_THAT(checks[0].fix, HasSubstr("sudo rm -r "));
}

}  // namespace
}  // namespace cgdebug::cli
