#include <malloc.h>
#include <signal.h>

#include <climits>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/remote/passwords.h"
#include "client/cli/remote/remote_helper.h"
#include "daemon/core/base/terminate.h"

namespace {

// Before the constructors of what is linked in, which allocate as well.
[[gnu::constructor(101)]] void BeforeOthers() {
  cgdebug::EndInsteadOfAborting(cgdebug::cli::kProgram, nullptr);
}

}  // namespace

int main(int argc, char** argv) noexcept {
  using namespace cgdebug::cli;
  // What is freed is soon needed again: a command is short, and may have as many things as the job.
  // To hand memory back to the system, and get it anew, takes a fifth of the time of some.
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it takes
  // A closed pipe ends the process silently, as it does for cat; a parent may have ignored it.
  ::signal(SIGPIPE, SIG_DFL);
  cgdebug::recording::SetRemoteFiles(std::make_unique<RemoteHelper>());
  SetTerminalColumns(ColumnsOfWatch());
  Context context;
  CommandLine command_line(context);
  std::vector<std::string> words = HidePasswords(argc, argv);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int code = command_line.Run(argc, pointers.data());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    context.Say("cannot write to standard output");
    return kExitTrouble;
  }
  return code;
}
