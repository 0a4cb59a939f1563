#include "daemon/core/base/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace cgdebug {
namespace {

TEST(OpenRegularFile, OpensAFileAndALinkToOneAndMakesOne) {
  const testing_support::TempDir dir;
  std::ofstream(dir / "file") << "x";
  std::filesystem::create_symlink("file", dir / "link");
  EXPECT_TRUE(OpenRegularFile(dir / "file", O_RDONLY).ok());
  EXPECT_TRUE(OpenRegularFile(dir / "link", O_RDWR).ok());
  EXPECT_TRUE(OpenRegularFile(dir / "new", O_RDWR | O_CREAT).ok());
  struct stat status = {};
  ASSERT_EQ(stat((dir / "new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 077u, 0u) << "it is its owner's alone";
  EXPECT_THAT(OpenRegularFile(dir / "none", O_RDONLY).error().message,
              testing::HasSubstr("No such file"));
}

TEST(OpenRegularFile, RefusesOtherFilesWithoutWaitingForThem) {
  const testing_support::TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(dir / "directory");
  std::filesystem::create_symlink("/dev/zero", dir / "device");
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  (dir / "socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  for (const char* name : {"pipe", "directory", "device", "socket"}) {
    for (const int flags : {O_RDONLY, O_RDWR}) {
      EXPECT_EQ(OpenRegularFile(dir / name, flags).error().message,
                dir / name + " is not a regular file");
    }
  }
}

}  // namespace
}  // namespace cgdebug
