#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/core/words/condition.h"
#include "daemon/core/words/config_file.h"
#include "daemon/core/words/finding_kinds.h"
#include "daemon/core/words/probe_name.h"
#include "daemon/core/words/settings.h"
#include "daemon/core/words/watch_level.h"

namespace cgdebug::words {
namespace {

using testing::HasSubstr;

// "\x0a" as in a string literal of C.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 2, "\\x") != 0) {
      plain += text[at];
      continue;
    }
    plain += static_cast<char>(std::stoi(text.substr(at + 2, 2), nullptr, 16));
    at += 3;
  }
  return plain;
}

std::string Number(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), "%g", number);
  return text;
}

// What the word means, as the third column of words.tsv.
std::string MeaningOf(const std::string& kind, const std::string& word) {
  const std::string setting = "setting ";
  if (kind.starts_with(setting)) {
    return CheckSetting(kind.substr(setting.size()), word).ok() ? "ok" : "refused";
  }
  if (kind == "condition") {
    const auto condition = ParseCondition(word, "--on");
    if (!condition.ok()) return "refused";
    return std::to_string(static_cast<int>(condition->trigger)) + " " +
           Number(condition->threshold);
  }
  if (kind == "finding_kinds") {
    const auto kinds = ParseFindingKinds(word, "--fail-on");
    if (!kinds.ok()) return "refused";
    std::string text;
    for (const layout::FindingKind one : *kinds) {
      text += (text.empty() ? "" : " ") + std::string(kFindingWords[static_cast<int>(one)]);
    }
    return text;
  }
  if (kind == "watched") {
    const auto watched = ParseWatched(word, "--watch");
    return watched.ok() ? std::string(watched->level) + " " + watched->globs : "refused";
  }
  return CheckProbeName(word).ok() ? "ok" : "refused";
}

TEST(Words, EachMeansWhatTheTableSays) {
  std::ifstream table(CGDEBUG_TEST_DATA "/words.tsv");
  int count = 0;
  for (std::string line; std::getline(table, line); ++count) {
    const std::size_t first = line.find('\t'), last = line.rfind('\t');
    const std::string word = line.substr(first + 1, last - first - 1);
    EXPECT_EQ(MeaningOf(line.substr(0, first), Unescaped(word)), line.substr(last + 1)) << line;
  }
  EXPECT_GE(count, 200);
}

TEST(ConfigFile, KeysAreTheVariablesOfAJob) {
  const auto read = ParseConfig(
      "# what to look at\n"
      "watch = [\"blocks.*\", '!*.drop', # not this\n"
      "  're:^h\\.\\d+$',\n]\n"
      "watch_eager = true\n\r\n"
      "on = \"absmax>1e4\"   # a trigger\n"
      "wait_ms = 500\n"
      "dir = 'a # b'",
      "a.toml");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, (ConfigSettings{{"CGDEBUG_WATCH", "blocks.*,!*.drop,re:^h\\.\\d+$"},
                                   {"CGDEBUG_WATCH_EAGER", "1"},
                                   {"CGDEBUG_ON", "absmax>1e4"},
                                   {"CGDEBUG_WAIT_MS", "500"},
                                   {"CGDEBUG_DIR", "a # b"}}));
  EXPECT_TRUE(ParseConfig("", "a.toml")->empty());
}

TEST(ConfigFile, WhatItDoesNotUnderstandIsRefusedWithItsLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"\nwach = 'a'", "a.toml:2: there is no key 'wach'. Close: 'watch'."},
      {"socket = 'a'", "there is no key 'socket'. There are: "},
      {"watch = 'a'\nwatch = 'b'", "a.toml:2: watch has a value already"},
      {"[run]\nwatch = 'a'", "a.toml:1: this line is not KEY = VALUE"},
      {"watch", "this line is not KEY = VALUE"},
      {"watch = blk", "'blk' is no value"},
      {"watch =", "'' is no value"},
      {"watch = 'a' 'b'", "more follows the value of watch"},
      {"watch = 'a", "does not end in its line"},
      {"watch = \"a\\n\"", "of the escapes there are"},
      {"watch = '''a'''", "one pair of quotes"},
      {"watch = ['a' 'b']", "a list needs , or ]"},
      {"watch = ['a,b']", "has no comma"},
      {"watch = [\n\n1]", "a.toml:3: a list has texts in quotes"},
      {"wait_ms = 1_000", "'1_000' is no value"},
      {"wait_ms = -1", "'-1' is no value"},
      {"wait_ms = 700000", "CGDEBUG_WAIT_MS is a whole number from 0 to 600000"},
      {"on = 'often'", "CGDEBUG_ON is nan"},
      {"watch = 'ops:*'", "is no level"},
  };
  for (const auto& [text, message] : wrong) {
    const auto read = ParseConfig(text, "a.toml");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(read.error().message, HasSubstr(message)) << text;
  }
  EXPECT_THAT(ReadConfig("/nowhere.toml").error().message, HasSubstr("cannot read /nowhere.toml"));
}

TEST(Words, ANameMadeFromAnyTextIsValid) {
  for (const std::string& text :
       {std::string("!a@b*\n"), std::string("\xe2\x80\xa8{x}"), std::string(300, 'x') + "#",
        "!" + std::string(255, 'y'), std::string(200, 'x') + "!" + std::string(254, 'y')}) {
    const std::string name = MakeProbeName(text);
    EXPECT_TRUE(CheckProbeName(name).ok()) << name;
  }
  EXPECT_EQ(MakeProbeName("a@3*"), "a_3_");
  std::string wide;
  for (int i = 0; i < 200; ++i) wide += "\xc3\xa9";  // 400 bytes
  EXPECT_EQ(MakeProbeName(wide).size(), 254u);       // not half a character
}

TEST(Settings, AMalformedOneIsNamedAndReadAsUnset) {
  setenv("CGDEBUG_WAIT_MS", "2s", 1);
  setenv("CGDEBUG_OP_LOG_BATCH", "7", 1);
  const std::vector<MalformedSetting> malformed = MalformedSettings();
  ASSERT_EQ(malformed.size(), 1u);
  EXPECT_EQ(malformed[0].problem, "CGDEBUG_WAIT_MS is a whole number from 0 to 600000, not '2s'");
  EXPECT_EQ(ReadNumber("CGDEBUG_WAIT_MS"), std::nullopt);
  EXPECT_EQ(ReadNumber("CGDEBUG_OP_LOG_BATCH"), 7u);
  unsetenv("CGDEBUG_WAIT_MS");
  unsetenv("CGDEBUG_OP_LOG_BATCH");
}

}  // namespace
}  // namespace cgdebug::words
