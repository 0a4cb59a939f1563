// Which files of /dev/shm wake the daemon.
#include "daemon/ingest/segment_watcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "libprobe/ring/segment_writer.h"

namespace cgdebug::ingest {
namespace {

TEST(Watcher, OtherProgramsFilesAreNoNews) {
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

}  // namespace
}  // namespace cgdebug::ingest
