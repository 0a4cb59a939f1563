// commands_fixture.h: cgdebug-cli as a process, against a fake daemon that speaks the real
// protocol.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/cli/cli_world.h"
#include "tests/support/daemon/fake_daemon.h"
#include "tests/support/run_process.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {

class CommandsTest : public ::testing::Test {
 protected:
  void Serve() {
    daemon_ = std::make_unique<testing_support::FakeDaemon>(
        dir_ / "daemon.sock",
        [this](const v1::Request& request) { return world_.Answer(request); });
  }
  std::vector<std::string> Command(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {CGDEBUG_CLI, "--socket", dir_ / "daemon.sock",
                                        "--no-spawn"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  testing_support::ProcessResult Cli(const std::vector<std::string>& arguments) {
    return testing_support::Process(Command(arguments), {"NO_COLOR=1"}).Wait();
  }
  static v1::TailReply Event(const v1::Snapshot& snapshot) {
    v1::TailReply event;
    *event.mutable_snapshot() = snapshot;
    return event;
  }

  testing_support::TempDir dir_;
  testing_support::World world_;
  std::unique_ptr<testing_support::FakeDaemon> daemon_;
};

}  // namespace cgdebug::cli
