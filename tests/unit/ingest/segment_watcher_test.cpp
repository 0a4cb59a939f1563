// Which files of /dev/shm wake the daemon.
#include "daemon/ingest/segment_watcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "libprobe/ring/segment/segment_writer.h"

namespace cgdebug::ingest {
namespace {

TEST(Watcher, OtherProgramsFilesDoNotWakeTheDaemon) {
  SegmentWatcher watcher;
  ASSERT_GE(watcher.fd(), 0);
  const std::string other = ring::ShmPath("torch_12345_1_0"), renamed = ring::ShmPath("torch_1");
  for (int i = 0; i < 100; ++i) {
    std::ofstream(other) << "x";
    ASSERT_EQ(rename(other.c_str(), renamed.c_str()), 0);
    unlink(renamed.c_str());
  }
  EXPECT_FALSE(watcher.Drain());
  ring::SegmentWriter segment{ring::Identity{}};
  EXPECT_TRUE(watcher.Drain());
  segment.Close(/*unlink=*/true);
}

TEST(Watcher, AFileThatWasRefusedIsLookedAtAgainOnceItHasChanged) {
  using testing::Contains;
  using testing::Not;
  SegmentWatcher watcher;
  ring::SegmentWriter segment{ring::Identity{}};
  watcher.Refuse(segment.name(), "it is not whole", /*retry=*/false);
  EXPECT_THAT(watcher.Scan(), Not(Contains(segment.name())));
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, ring::ShmPath(segment.name()).c_str(), times, 0), 0);
  EXPECT_THAT(watcher.Scan(), Contains(segment.name()));
  segment.Close(/*unlink=*/true);
}

}  // namespace
}  // namespace cgdebug::ingest
