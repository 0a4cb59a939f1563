#include "daemon/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace cgdebug {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("CGDEBUG_LOG");
    std::string pattern = fs::temp_directory_path() / "cgdebug-log-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    ::unsetenv("CGDEBUG_LOG");
    spdlog::shutdown();
    fs::remove_all(folder_);
  }
  Result<void> Init(const std::string& filter) {
    return InitLog({.filter = filter, .file = folder_ + "/log"});
  }
  std::string Written() {
    spdlog::default_logger()->flush();
    std::ifstream file(folder_ + "/log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string folder_;
};

TEST_F(LogTest, InfoIsTheDefaultLevel) {
  ASSERT_TRUE(Init("").ok());
  Log("ingest")->info("seen");
  Log("ingest")->debug("unseen");
  EXPECT_THAT(Written(), AllOf(HasSubstr("I ingest: seen"), Not(HasSubstr("unseen"))));
}

TEST_F(LogTest, FilterSetsComponentsApart) {
  ASSERT_TRUE(Init("warn,+daemon,rpc,-sinks").ok());
  Log("daemon")->debug("daemon debug");
  Log("rpc")->info("rpc info");
  Log("rpc")->debug("rpc debug");
  Log("ingest")->info("ingest info");
  Log("sinks")->warn("sinks warn");
  EXPECT_THAT(Written(),
              AllOf(HasSubstr("daemon debug"), HasSubstr("rpc info"), Not(HasSubstr("rpc debug")),
                    Not(HasSubstr("ingest info")), Not(HasSubstr("sinks warn"))));
}

TEST_F(LogTest, VariableIsUsedWithoutAFilter) {
  ::setenv("CGDEBUG_LOG", "debug", 1);
  ASSERT_TRUE(Init("").ok());
  Log("daemon")->debug("from the variable");
  EXPECT_THAT(Written(), HasSubstr("from the variable"));
}

TEST_F(LogTest, ErrorBringsWhatLedToIt) {
  ASSERT_TRUE(Init("").ok());
  for (int i = 0; i < 70; ++i) Log("sinks")->debug("step {}.", i);
  EXPECT_THAT(Written(), Not(HasSubstr("step")));
  Log("ingest")->error("broken");
  const std::string written = Written();
  EXPECT_THAT(written,
              AllOf(Not(HasSubstr("step 5.")), HasSubstr("step 6."), HasSubstr("step 69.")));
  EXPECT_LT(written.find("step 69."), written.find("broken"));
}

TEST_F(LogTest, WhatLedToAnErrorIsWrittenOnce) {
  ASSERT_TRUE(Init("").ok());
  Log("sinks")->debug("only once");
  Log("sinks")->error("first");
  Log("sinks")->error("second");
  const std::string written = Written();
  EXPECT_EQ(written.find("only once"), written.rfind("only once"));
}

TEST_F(LogTest, UnknownWordIsAnErrorWithTheNearest) {
  const auto result = Init("+ingst");
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, AllOf(HasSubstr("'ingst'"), HasSubstr("'ingest'")));
}

TEST_F(LogTest, FileThatCannotBeOpenedIsAnError) {
  const auto result = InitLog({.file = "/proc/nowhere/log"});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("/proc/nowhere/log"));
}

}  // namespace
}  // namespace cgdebug
