// The daemon as a process: real shared memory, real producers, a real socket.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/producer_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using testing::HasSubstr;

std::vector<float> Floats(const std::string& payload) {
  std::vector<float> values(payload.size() / sizeof(float));
  std::memcpy(values.data(), payload.data(), payload.size());
  return values;
}

SlotSpec Recording(const std::string& name) {
  SlotSpec spec;
  spec.name = name;
  spec.record_every = 1;
  return spec;
}

class DaemonTest : public testing::Test {
 protected:
  testing_support::TempDir directory_;
};

TEST_F(DaemonTest, ShowsTheJobAndTheValuesOfItsLastReplay) {
  DaemonProcess daemon(directory_);
  ProducerProcess job({Recording("blk0.out")});
  job.Write(0, 3);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 3));

  const auto session = daemon.Session(job.key());
  EXPECT_EQ(session->label(), "test");
  EXPECT_EQ(session->pid(), job.pid());
  EXPECT_EQ(session->state(), v1::Session::ALIVE);
  EXPECT_EQ(session->replay(), 3u);
  EXPECT_EQ(session->counters().produced(), 3u);
  const client::Tensor tensor = daemon.Get(job.key(), "blk0.out");
  EXPECT_EQ(tensor.reply.snapshot().replay(), 3u);
  EXPECT_THAT(Floats(tensor.payload), testing::ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
}

}  // namespace
}  // namespace cgdebug::test
