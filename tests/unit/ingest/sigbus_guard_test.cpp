#include "daemon/ingest/sigbus_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace cgdebug::ingest {
namespace {

const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

// Two pages of a file that has one.
volatile char* MapPastTheEnd() {
  const int fd = memfd_create("cut", 0);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(kPage)), 0);
  void* data = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT_NE(data, MAP_FAILED);
  close(fd);
  return static_cast<char*>(data);
}

TEST(SigbusGuard, AMissingPageReadsAsZerosAndIsReported) {
  SigbusGuard::Install();
  volatile char* data = MapPastTheEnd();
  data[0] = 7;
  {
    const SigbusGuard guard;
    EXPECT_EQ(char{data[0]}, 7);
    EXPECT_FALSE(SigbusGuard::Hit());
    EXPECT_EQ(char{data[kPage + 5]}, 0);
    EXPECT_TRUE(SigbusGuard::Hit());
    data[kPage + 5] = 1;  // goes nowhere
  }
  const SigbusGuard next;
  EXPECT_FALSE(SigbusGuard::Hit()) << "each outermost guard starts anew";
}

TEST(SigbusGuardDeathTest, WithoutAGuardTheProcessDiesAsItWould) {
  EXPECT_EXIT(
      {
        SigbusGuard::Install();
        volatile char* data = MapPastTheEnd();
        _exit(data[kPage] == 0 ? 0 : 1);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace cgdebug::ingest
