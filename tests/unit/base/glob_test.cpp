#include "daemon/core/base/glob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cgdebug {
namespace {

using ::testing::HasSubstr;

Selector Parse(const std::vector<std::string>& patterns) {
  return Selector::Parse(patterns).value();
}

struct GlobCase {
  const char* pattern;
  const char* text;
  bool matches;
};

class Glob : public ::testing::TestWithParam<GlobCase> {};

TEST_P(Glob, Matches) {
  const GlobCase& c = GetParam();
  EXPECT_EQ(GlobMatch(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Glob,
    ::testing::Values(
        GlobCase{"", "", true}, GlobCase{"", "a", false}, GlobCase{"*", "", true},
        GlobCase{"*", "a.b", true}, GlobCase{"blk*.attn", "blk3.attn", true},
        GlobCase{"blk*.attn", "blk3.attn.out", false}, GlobCase{"a*b*c", "a1b2b3c", true},
        GlobCase{"a*b*c", "a1c2b", false}, GlobCase{"?", "a", true}, GlobCase{"?", "", false},
        GlobCase{"a?c", "abc", true}, GlobCase{"[a-c]x", "bx", true},
        GlobCase{"[a-c]x", "dx", false}, GlobCase{"[!a-c]x", "dx", true},
        GlobCase{"[^a-c]x", "ax", false}, GlobCase{"[]]", "]", true}, GlobCase{"[!]]", "]", false},
        GlobCase{"[a-]", "-", true}, GlobCase{"[ab", "[ab", true}, GlobCase{"[ab", "a", false},
        GlobCase{"\\*", "*", true}, GlobCase{"\\*", "a", false}, GlobCase{"a\\", "a\\", true},
        GlobCase{"**a", "bba", true}, GlobCase{"a*", "a", true}, GlobCase{"*a*", "b", false}));

TEST(GlobMatch, ManyStarsStayFast) {
  std::string pattern, text(255, 'a');
  for (int i = 0; i < 60; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatch(pattern + "b", text));
}

TEST(Selector, NothingSelectsEverything) {
  EXPECT_TRUE(Selector().Matches("x"));
  EXPECT_TRUE(Parse({}).selects_everything());
}

TEST(Selector, IncludesAreAlternatives) {
  const Selector selector = Parse({"blk0.*", "loss"});
  EXPECT_TRUE(selector.Matches("blk0.attn"));
  EXPECT_TRUE(selector.Matches("loss"));
  EXPECT_FALSE(selector.Matches("blk1.attn"));
}

TEST(Selector, ExcludeWinsWhereverItStands) {
  const Selector selector = Parse({"!*.attn", "blk*"});
  EXPECT_TRUE(selector.Matches("blk0.mlp"));
  EXPECT_FALSE(selector.Matches("blk0.attn"));
  EXPECT_FALSE(selector.Matches("loss"));
}

TEST(Selector, OnlyExcludesSelectTheRest) {
  const Selector selector = Parse({"!blk*"});
  EXPECT_TRUE(selector.Matches("loss"));
  EXPECT_FALSE(selector.Matches("blk0"));
  EXPECT_FALSE(selector.selects_everything());
}

TEST(Selector, RegexIsSearched) {
  const Selector selector = Parse({"re:blk[0-9]+\\.(attn|mlp)$", "!re:^blk1"});
  EXPECT_TRUE(selector.Matches("model.blk12.mlp"));
  EXPECT_FALSE(selector.Matches("model.blk12.mlp.out"));
  EXPECT_FALSE(selector.Matches("blk1.attn"));
}

TEST(Selector, NameSpelledExactlyIsSelected) {
  EXPECT_TRUE(Parse({"layers[0].mlp"}).Matches("layers[0].mlp"));
  EXPECT_FALSE(Parse({"!layers[0].mlp"}).Matches("layers[0].mlp"));
}

TEST(Selector, BadRegexNamesItself) {
  const auto bad = Selector::Parse(std::vector<std::string>{"re:blk("});
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("bad regular expression 'blk('"));
}

TEST(Selector, RegexCannotTakeExponentialTime) {
  const Selector selector = Parse({"re:^(a*)*b$"});
  EXPECT_FALSE(selector.Matches(std::string(255, 'a')));
  EXPECT_FALSE(Selector::Parse(std::vector<std::string>{"re:(a)\\1"}).ok());
  for (const char* huge : {"re:r\\99999999999999999999", "re:a{99999999999999999999}",
                           "re:a{1,99999999999999999999}", "re:a{1000000}"}) {
    EXPECT_FALSE(Selector::Parse(std::vector<std::string>{huge}).ok()) << huge;
  }
  EXPECT_FALSE(Selector::Parse(std::vector<std::string>{"re:" + std::string(5000, '(')}).ok());
}

TEST(Selector, AListHasItsPatternsBetweenCommasAndRefusesAnEmptyOne) {
  const Selector list = Selector::ParseList(" blk*.attn , !blk3.*").value();
  EXPECT_TRUE(list.Matches("blk0.attn"));
  EXPECT_FALSE(list.Matches("blk3.attn"));
  EXPECT_FALSE(list.Matches("blk0.mlp"));
  EXPECT_TRUE(Selector::ParseList("").value().selects_everything());
  EXPECT_TRUE(Selector::ParseList(" , ").value().selects_everything());
  for (const char* list : {"a,,b", "a,", ",a", "a, ,b"}) {
    EXPECT_FALSE(Selector::ParseList(list).ok()) << list;
  }
}

TEST(Selector, EmptyPatternIsAnError) {
  for (const char* text : {"", "!", "re:", "!re:"}) {
    EXPECT_FALSE(Selector::Parse(std::vector<std::string>{text}).ok()) << text;
  }
}

}  // namespace
}  // namespace cgdebug
