#include "client/cli/pager.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/views/terminal.h"

namespace cgdebug::cli {
namespace {

// The program and its options; empty: none.
std::vector<std::string> PagerWords() {
  const char* pager = std::getenv("PAGER");
  std::istringstream words(pager == nullptr ? "less" : pager);
  std::vector<std::string> split;
  for (std::string word; words >> word;) split.push_back(word);
  if (split.size() == 1 && split.front() == "cat") split.clear();
  return split;
}

Pager* current = nullptr;

}  // namespace

Pager::Pager(bool is_wanted) : is_wanted_(is_wanted) { current = this; }

void Pager::BeforeText() {
  if (current == nullptr || !current->is_wanted_) return;
  current->is_wanted_ = false;
  current->Start();
}

void Pager::Start() {
  const char* terminal = std::getenv("TERM");
  const std::size_t columns = TerminalColumns(STDOUT_FILENO);
  if (::isatty(STDOUT_FILENO) != 1 || columns == 0) return;
  if (terminal == nullptr || std::string(terminal) == "dumb") return;
  std::vector<std::string> words = PagerWords();
  int ends[2];
  if (words.empty() || ::pipe2(ends, O_CLOEXEC) != 0) return;
  const UniqueFd theirs(ends[0]), ours(ends[1]);
  ::setenv("LESS", "FRX", /*overwrite=*/0);
  ::setenv("LESSCHARSET", "utf-8", /*overwrite=*/0);  // names are UTF-8 in every locale
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return;
  pid_ = pid;
  SetTerminalColumns(columns);
  std::fflush(stdout);
  ::dup2(ours.get(), STDOUT_FILENO);
  if (::isatty(STDERR_FILENO) != 1) return;
  stderr_.reset(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  ::dup2(ours.get(), STDERR_FILENO);
}

Pager::~Pager() {
  current = nullptr;
  if (pid_ == 0) return;
  std::fflush(stdout);
  // Its stdin ends when nobody can write to it.
  const UniqueFd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDOUT_FILENO);
  if (stderr_) ::dup2(stderr_.get(), STDERR_FILENO);
  ::signal(SIGINT, SIG_IGN);  // it is the pager's: the terminal stays its own until it ends
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace cgdebug::cli
