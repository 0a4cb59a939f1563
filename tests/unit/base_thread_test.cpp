// The check exists in builds without NDEBUG; this file is one whatever the build type.
#undef NDEBUG
#include <gtest/gtest.h>

#include <thread>

#include "daemon/base/thread_checker.h"

namespace cgdebug {
namespace {

TEST(ThreadChecker, FirstUserOwns) {
  ThreadChecker checker;
  std::thread([&] { checker.Check("Thing"); }).join();
  EXPECT_DEATH(checker.Check("Thing"), "Thing used by a thread that does not own it");
}

TEST(ThreadChecker, DetachHandsOver) {
  ThreadChecker checker;
  std::thread([&] { checker.Check("Thing"); }).join();
  checker.Detach();
  checker.Check("Thing");
  checker.Check("Thing");
}

}  // namespace
}  // namespace cgdebug
