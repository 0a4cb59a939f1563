#include "daemon/core/endpoint/runtime_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace cgdebug {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RuntimeDir : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "cgdebug-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    environment_.tmp_dir = root_ + "/tmp";
    environment_.uid = ::geteuid();
    MakeDir("tmp", 0777);
    own_ = environment_.tmp_dir + "/cgdebug-" + std::to_string(environment_.uid);
  }
  void TearDown() override { fs::remove_all(root_); }

  void MakeDir(const std::string& name, mode_t mode) {
    const std::string path = root_ + "/" + name;
    ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }
  static mode_t Mode(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777u : 0;
  }

  std::string root_, own_;
  RuntimeEnvironment environment_;
};

TEST_F(RuntimeDir, FallsBackToTmpWithoutXdg) {
  EXPECT_EQ(SocketPath(environment_).value(), own_ + "/daemon.sock");
  EXPECT_FALSE(fs::exists(own_));
}

TEST_F(RuntimeDir, PrepareCreatesPrivateDirectory) {
  const mode_t saved = ::umask(0);
  EXPECT_EQ(PrepareSocketPath(environment_).value(), own_ + "/daemon.sock");
  ::umask(saved);
  EXPECT_EQ(Mode(own_), 0700u);
  EXPECT_TRUE(PrepareSocketPath(environment_).ok());
}

TEST_F(RuntimeDir, XdgIsUsedWhenItIsPrivate) {
  MakeDir("run", 0700);
  environment_.xdg_runtime_dir = root_ + "/run";
  EXPECT_EQ(PrepareSocketPath(environment_).value(), root_ + "/run/cgdebug/daemon.sock");
  EXPECT_EQ(Mode(root_ + "/run/cgdebug"), 0700u);
}

TEST_F(RuntimeDir, XdgIsPassedOverWhenMissingOrShared) {
  environment_.xdg_runtime_dir = root_ + "/nowhere";
  EXPECT_EQ(SocketPath(environment_).value(), own_ + "/daemon.sock");
  MakeDir("shared", 0770);
  environment_.xdg_runtime_dir = root_ + "/shared";
  EXPECT_EQ(SocketPath(environment_).value(), own_ + "/daemon.sock");
  environment_.xdg_runtime_dir = "relative";
  EXPECT_EQ(SocketPath(environment_).value(), own_ + "/daemon.sock");
}

TEST_F(RuntimeDir, FlagComesBeforeVariableBeforeXdg) {
  environment_.socket = root_ + "/tmp/a.sock";
  EXPECT_EQ(SocketPath(environment_).value(), root_ + "/tmp/a.sock");
  EXPECT_EQ(SocketPath(environment_, root_ + "/b.sock").value(), root_ + "/b.sock");
}

TEST_F(RuntimeDir, ChosenSocketsDirectoryIsCreated) {
  environment_.socket = root_ + "/new/a.sock";
  EXPECT_TRUE(PrepareSocketPath(environment_).ok());
  EXPECT_EQ(Mode(root_ + "/new"), 0700u);
}

TEST_F(RuntimeDir, RelativeChoiceBecomesAbsolute) {
  environment_.socket = "a.sock";
  EXPECT_EQ(SocketPath(environment_).value(), fs::current_path().string() + "/a.sock");
}

TEST_F(RuntimeDir, SymlinkIsRefused) {
  MakeDir("elsewhere", 0700);
  fs::create_symlink(root_ + "/elsewhere", own_);
  for (const auto& result : {SocketPath(environment_), PrepareSocketPath(environment_)}) {
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.error().message,
                AllOf(HasSubstr(own_), HasSubstr("symbolic link"), HasSubstr("Type: rm ")));
  }
}

TEST_F(RuntimeDir, DirectoryThatOthersMayWriteIsRefused) {
  MakeDir("tmp/cgdebug-" + std::to_string(environment_.uid), 0770);
  const auto result = PrepareSocketPath(environment_);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("Type: chmod 0700 " + own_));
}

TEST_F(RuntimeDir, DirectoryOfAnotherUserIsRefused) {
  // Seen from another user, this directory of ours is the foreign one.
  environment_.uid = ::geteuid() + 1;
  MakeDir("tmp/cgdebug-" + std::to_string(environment_.uid), 0700);
  const auto result = PrepareSocketPath(environment_);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message,
              AllOf(HasSubstr("belongs to uid " + std::to_string(::geteuid())),
                    HasSubstr("CGDEBUG_SOCKET")));
}

TEST_F(RuntimeDir, FileInTheWayIsRefused) {
  std::FILE* file = std::fopen(own_.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fclose(file);
  const auto result = PrepareSocketPath(environment_);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("not a directory"));
}

TEST_F(RuntimeDir, PathTooLongForASocketIsRefused) {
  environment_.socket = "/" + std::string(120, 'a');
  const auto result = SocketPath(environment_);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("121 bytes, the system allows 107"));
}

}  // namespace
}  // namespace cgdebug
