#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/bytes.h"
#include "daemon/base/whole_number.h"

namespace cgdebug {
namespace {

using ::testing::HasSubstr;

TEST(ParseBytes, CountsBy1024AndTakesFractions) {
  EXPECT_EQ(ParseBytes("0").value(), 0u);
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("1k").value(), 1024u);
  EXPECT_EQ(ParseBytes("512M").value(), 512u << 20);
  EXPECT_EQ(ParseBytes("1.5G").value(), 3ull << 29);
  EXPECT_EQ(ParseBytes("20GiB").value(), 20ull << 30);
  EXPECT_EQ(ParseBytes("2TB").value(), 2ull << 40);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "-5", "G", "1X", "1GG", "12 M", "nan", "inf", "99999999999G"}) {
    ASSERT_FALSE(ParseBytes(text).ok()) << text;
    EXPECT_THAT(ParseBytes(text).error().message, HasSubstr("is no size; write for example 512M"));
  }
}

TEST(WholeNumber, RefusesInWordsWhatIsNoneOrOutOfRange) {
  const CLI::Validator number = WholeNumber(1, 64);
  EXPECT_EQ(number("64"), "");
  for (const char* text : {"0", "65", "-1", "1.5", "x", "", "99999999999999999999"}) {
    EXPECT_EQ(number(text), "'" + std::string(text) + "' is no whole number from 1 to 64");
  }
  EXPECT_EQ(WholeNumber(1)("0"), "'0' is no whole number from 1 on");
}

}  // namespace
}  // namespace cgdebug
