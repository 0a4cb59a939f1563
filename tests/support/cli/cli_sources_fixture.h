// cli_sources_fixture.h: cgdebug-cli as a process, over files and without a daemon.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/run_process.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {

class CliSourcesTest : public ::testing::Test {
 protected:
  testing_support::ProcessResult Cli(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {CGDEBUG_CLI, "--socket", dir_ / "none", "--no-spawn"});
    return testing_support::Process(arguments, {"NO_COLOR=1"}).Wait();
  }
  nlohmann::json CliJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "--json");
    return nlohmann::json::parse(Cli(arguments).out);
  }
  std::string Segment(const std::string& recording) {
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / recording)) {
      if (entry.path().filename().string().starts_with("segment-")) return entry.path().string();
    }
    return "";
  }

  void ExpectExamplesRun(const std::string& source) {
    std::istringstream examples(Cli({"query", "--examples"}).out);
    int count = 0;
    for (std::string line; std::getline(examples, line); ++count) {
      line.replace(line.find("SOURCE"), 6, source);
      line.replace(0, std::string("cgdebug-cli").size(), CGDEBUG_CLI);
      const testing_support::ProcessResult result =
          testing_support::Process({"sh", "-c", line}).Wait();
      EXPECT_EQ(result.code, 0) << line << result.err;
    }
    EXPECT_GE(count, 5);
  }

  testing_support::TempDir dir_;
};

}  // namespace cgdebug::cli
