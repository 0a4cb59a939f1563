#include <gtest/gtest.h>

#include "tests/support/daemon_process.h"

// Before any thread: unshare() wants one.
int main(int argc, char** argv) {
  cgdebug::test::EnterPrivateShm();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
