#include "daemon/core/base/result.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "daemon/core/base/unique_fd.h"

namespace cgdebug {
namespace {

Result<int> ParseDigit(char c) {
  if (c < '0' || c > '9') return Error{std::string("not a digit: ") + c};
  return c - '0';
}

Result<std::string> DigitText(char c) {
  Result<int> digit = ParseDigit(c);
  if (!digit) return std::move(digit).error();
  return std::to_string(*digit);
}

TEST(Result, CarriesValueOrMessage) {
  EXPECT_EQ(*ParseDigit('7'), 7);
  EXPECT_FALSE(ParseDigit('x').ok());
  EXPECT_EQ(ParseDigit('x').error().message, "not a digit: x");
}

TEST(Result, ErrorPassesToAnotherType) {
  EXPECT_EQ(DigitText('4').value(), "4");
  EXPECT_EQ(DigitText('?').error().message, "not a digit: ?");
}

TEST(Result, ValueOfFailureThrowsItsMessage) {
  try {
    (void)ParseDigit('x').value();
    FAIL() << "no exception";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "Result has no value: not a digit: x");
  }
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(3);
  std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 3);
}

TEST(Result, BoolHasNoImplicitMeaning) {
  static_assert(!std::is_constructible_v<bool, Result<bool>>);
  EXPECT_TRUE(Result<bool>(false).ok());
  EXPECT_FALSE(Result<bool>(Error{"no"}).ok());
  EXPECT_FALSE(*Result<bool>(false));
}

TEST(Result, VoidIsSuccessByDefault) {
  EXPECT_TRUE(Result<void>().ok());
  EXPECT_EQ(Result<void>(Error{"why"}).error().message, "why");
}

TEST(Result, ValueOrFallsBack) {
  EXPECT_EQ(ParseDigit('x').value_or(-1), -1);
  EXPECT_EQ(ParseDigit('5').value_or(-1), 5);
}

TEST(Result, ErrnoErrorNamesCause) {
  EXPECT_EQ(ErrnoError("open /x", ENOENT).message, "open /x: No such file or directory");
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFd, ClosesOnceAndMoves) {
  int number = -1;
  {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    number = first.get();
    ASSERT_TRUE(IsOpen(number));
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_EQ(second.get(), number);
  }
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFd, ReleaseGivesOwnershipAway) {
  int number = -1;
  {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    number = fd.release();
  }
  EXPECT_TRUE(IsOpen(number));
  ::close(number);
}

TEST(UniqueFd, ResetKeepsErrno) {
  UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::close(fd.get());
  errno = ENOTDIR;
  fd.reset();
  EXPECT_EQ(errno, ENOTDIR);
}

}  // namespace
}  // namespace cgdebug
