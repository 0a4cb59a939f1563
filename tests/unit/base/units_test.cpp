#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "daemon/core/base/bytes.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/options/number.h"

namespace cgdebug {
namespace {

using ::testing::HasSubstr;

TEST(AgeOf, TakesAnyTimeThatAJobMayClaim) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const auto since_1970 = AgeOf(0);
  EXPECT_GT(since_1970, std::chrono::hours(24 * 365 * 50));
  EXPECT_GE(AgeOf(kMin), since_1970) << "as old as can be, not new";
  EXPECT_EQ(AgeOf(kMax).count(), 0);
  EXPECT_EQ(AgeOf(RealtimeNs() + 1'000'000'000).count(), 0);
  EXPECT_GE(AgeOf(RealtimeNs() - 5).count(), 5);
}

TEST(ParseBytes, CountsBy1024AndTakesFractions) {
  EXPECT_EQ(ParseBytes("0").value(), 0u);
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("1k").value(), 1024u);
  EXPECT_EQ(ParseBytes("512M").value(), 512u << 20);
  EXPECT_EQ(ParseBytes("1.5G").value(), 3ull << 29);
  EXPECT_EQ(ParseBytes("20GiB").value(), 20ull << 30);
  EXPECT_EQ(ParseBytes("2TB").value(), 2ull << 40);
}

TEST(ParseBytes, RefusesTextsThatAreNotASize) {
  for (const char* text : {"", "-5", "G", "1X", "1GG", "12 M", "nan", "inf", "99999999999G"}) {
    ASSERT_FALSE(ParseBytes(text).ok()) << text;
    EXPECT_THAT(ParseBytes(text).error().message,
                HasSubstr("is not a size; write for example 512M"));
  }
}

TEST(ParseBytes, SaysTheLeastAndTheMost) {
  EXPECT_EQ(ParseBytes("4K", 4096, 16 << 20).value(), 4096u);
  EXPECT_EQ(ParseBytes("0", 4096).error().message, "'0' is too little; the least is 4K");
  EXPECT_EQ(ParseBytes("1G", 0, 16 << 20).error().message, "'1G' is too much; the most is 16M");
  EXPECT_EQ(ParseBytes("9", 0, 7).error().message, "'9' is too much; the most is 7");
}

TEST(ParseDuration, RefusesTextsThatAreNotADurationTooShortOrTooLong) {
  using std::chrono::milliseconds;
  EXPECT_EQ(ParseDuration("1.5h").value(), std::chrono::minutes(90));
  EXPECT_EQ(ParseDuration("0").value(), milliseconds(0));
  for (const char* text : {"", "-1", "5 fortnights", "nan"}) {
    EXPECT_THAT(ParseDuration(text).error().message, HasSubstr("is not a duration"));
  }
  EXPECT_EQ(ParseDuration("0", milliseconds(1)).error().message,
            "'0' is too short; the shortest is 1ms");
  EXPECT_EQ(ParseDuration("36501d").error().message, "'36501d' is too long; the longest is 36500d");
}

TEST(WholeNumber, RefusesOtherTextsAndNumbersOutOfRangeWithASentence) {
  const CLI::Validator number = WholeNumber(1, 64);
  EXPECT_EQ(number("64"), "");
  for (const char* text : {"0", "65", "-1", "1.5", "x", "", "99999999999999999999"}) {
    EXPECT_EQ(number(text), "'" + std::string(text) + "' is not a whole number from 1 to 64");
  }
  EXPECT_EQ(WholeNumber(1)("0"), "'0' is not a whole number from 1 on");
}

TEST(Number, RefusesOtherTextsAndNumbersOutOfRangeWithASentence) {
  const CLI::Validator number = Number(0.05, 3600);
  EXPECT_EQ(number("0.05"), "");
  EXPECT_EQ(number("1e3"), "");
  for (const char* text : {"0", "3601", "-1", "1s", "x", "", "nan"}) {
    EXPECT_EQ(number(text), "'" + std::string(text) + "' is not a number from 0.05 to 3600");
  }
}

}  // namespace
}  // namespace cgdebug
