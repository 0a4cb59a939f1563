// How a program ends when no memory is left.
#include "daemon/core/base/terminate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "tests/support/child_process.h"

namespace cgdebug {
namespace {

constexpr int kUnwound = 7;
constexpr int kCaught = 8;
constexpr int kAllocated = 9;

// A process that sets itself up like our programs and then asks for more memory than any machine
// has.
int AskForTooMuch(bool may_run_out) {
  return test::InChild([may_run_out] {
    EndInsteadOfAborting("test", nullptr);
    struct Message {
      ~Message() { _exit(kUnwound); }
    };
    const volatile std::size_t bytes = PTRDIFF_MAX - 4096;
    if (may_run_out) {
      try {
        const MayRunOutOfMemory large;
        ::operator delete(::operator new(bytes));
      } catch (const std::bad_alloc&) {
        return kCaught;
      }
    }
    const Message message;
    ::operator delete(::operator new(bytes));
    return kAllocated;
  });
}

TEST(Terminate, AnAllocationThatFailsEndsTheProgramAndUnwindsNothing) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer's allocator asks nobody when it fails";
#endif
  EXPECT_EQ(AskForTooMuch(/*may_run_out=*/false), 2);
}

TEST(Terminate, AnAllocationInMayRunOutOfMemoryThrows) {
#if defined(CGDEBUG_SANITIZED)
  GTEST_SKIP() << "a sanitizer's allocator asks nobody when it fails";
#endif
  EXPECT_EQ(AskForTooMuch(/*may_run_out=*/true), kCaught);
}

}  // namespace
}  // namespace cgdebug
