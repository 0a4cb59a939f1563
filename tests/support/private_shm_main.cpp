#include <gtest/gtest.h>

#include "tests/support/private_shm.h"

int main(int argc, char** argv) {
  cgdebug::test::UsePrivateShm();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
