// context.h: what every command has: the global flags, the daemon, and its output.
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "cgdebug/client.h"
#include "client/analysis/json_number.h"
#include "client/cli/exit_codes.h"
#include "client/cli/sources/selector.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/base/result.h"

namespace CLI {
class App;
}

namespace cgdebug::cli {

struct GlobalOptions {
  std::string socket;
  std::string session;
  std::string ranks;
  std::string color = "auto";
  bool json = false;
  bool no_spawn = false;
  bool quiet = false;
  bool no_pager = false;
};

// Counts up when a key of --json changes its meaning or goes; new keys do not count.
inline constexpr int kJsonSchema = 1;

// Thread: the main thread, except for client().Stop().
class Context {
 public:
  GlobalOptions options;
  RankSet ranks;
  Style out;                       // of stdout
  Style err;                       // of stderr
  const CLI::App* app = nullptr;   // the whole command line, for completion
  std::vector<std::string> words;  // what was typed behind the program's name

  // After parsing: ranks, colours. Fails: --ranks.
  Result<void> Resolve();

  client::Client& client() { return client_; }
  // `session` if it was given, else that of --session.
  const std::string& SessionOr(const std::string& session) const {
    return session.empty() ? options.session : session;
  }

  // What every proposed command repeats, so that it means the same job: " -s train", or nothing.
  std::string SameSession() const;
  // Likewise " --ranks 0,1".
  std::string SameRanks() const;
  // Both.
  std::string SameJob() const { return SameSession() + SameRanks(); }
  // The command that was typed, with all of its options, and `more`: "cgdebug-cli tail 'blk*' -f".
  std::string Again(std::string_view more) const;

  // Connects, and starts the daemon unless --no-spawn was given. Returns 0, or what to exit with
  // after the reason has been printed.
  int Connect();
  int ConnectWith(const client::ConnectOptions& connect);
  client::ConnectOptions MakeConnectOptions() const;

  // "cgdebug: <message>" on stderr.
  void Say(std::string_view message) const;
  // The next thing to type; nothing with -q.
  void Hint(std::string_view command) const;
  // A line on stderr that belongs to a view but is not data; nothing with -q.
  void Note(std::string_view line) const;
  // Text: stdout, in the form of the terminal (terminal.h).
  static void Print(std::string_view text);
  // One document, with the number of its schema. With --json a failure is one as well, unless
  // something was printed before.
  static void PrintJson(Json json);
  // Cut to `columns`; 0: whole.
  void PrintTable(const TextTable& table,
                  std::size_t columns = TerminalColumns(STDOUT_FILENO)) const;
  // Bytes that are not for people: stdout, as they are.
  static void PrintRaw(std::string_view bytes);

  int Fail(ExitCode code, std::string_view message) const;
  // The error of the client's last call, with the exit code of its kind.
  int Fail(const Error& error);
  // Says that there is no job, or none of that name.
  int FailNoJob(std::string_view message);
  // Which jobs this daemon leaves alone, as `status` shows them: another one may have them.
  void NoteSkipped();

 private:
  // What to say where nothing live has a name that is that of a file; empty otherwise.
  std::string FileText() const;

  client::Client client_;
};

}  // namespace cgdebug::cli
