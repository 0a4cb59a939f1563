// sources.h: SOURCE on the command line.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/diff/align.h"
#include "client/analysis/gaps.h"
#include "client/analysis/ops/op_log.h"
#include "client/cli/context.h"
#include "client/source/source.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/recording/types.h"

namespace CLI {
class App;
}

namespace cgdebug::cli {

// How to name a source on the command line: a path, "live", or a session.
inline constexpr const char* kSourceHelp =
    "NAME.cgrec, a folder of them, .safetensors, live or a session";

// Opens the source; a path that exists wins over a session of the same name. `session` chooses the
// job: in a file (empty: all jobs), or of "live" (empty: the one that comes first). Returns 0, or
// what to exit with after the reason has been printed.
int OpenSource(Context& context, const std::string& text, const std::string& session,
               std::unique_ptr<source::Source>* source);
// The same with the session that --session names.
int OpenSource(Context& context, const std::string& text, std::unique_ptr<source::Source>* source);

// As OpenSource(), but of the ranks that --ranks names alone.
int OpenSourceOfRanks(Context& context, const std::string& text,
                      std::unique_ptr<source::Source>* source);

// Reads one op log of the source. Of a live job it asks for nothing else. `others`: as
// analysis::ChooseOpLog(). Returns as OpenSource().
int OpenOpLog(Context& context, const std::string& text, const analysis::OpLogChoice& choice,
              analysis::OpLog* log, std::vector<std::string>* others);

// The line that stands above an answer and says what was read, ready to print. Empty if the source
// has none.
std::string HeadLine(const source::Source& source);

// Shows what was found in a source, as JSON if that was asked for. Returns the exit code.
int ShowFound(const Context& context, const source::Source& source, analysis::Outcome outcome,
              const std::function<Json()>& json, const std::function<analysis::Answer()>& answer);

// Lines that say which ranks of a distributed job the source has. Empty if a file has all of them.
std::string RanksHere(source::Source& source);

// Processes of one job can have one label: those of a fork, and those of a restart.
bool IsOfSameJob(const source::Slot& a, const source::Slot& b);
// What --session takes for a process: its label or, if others of the source have the same, the
// first digits of its uuid.
std::string KeyOfJob(const source::Source& source, const source::Process& process);
// The uuids of the recorded sessions that `selector` names.
std::set<std::string> UuidsOf(const source::Source& source, std::string_view selector);

// Prints the first of the sentences about what is missing, for commands whose answer does not say
// it. Requires: there is one.
void SayNotAll(const Context& context, const analysis::GapSummary& gaps);
// Prints which recordings of a folder cannot be read, for commands whose answer does not say it.
void SayUnread(const Context& context, const source::Source& source);

// Whether `selector` names the session: live::MatchesSession without the key, which only the daemon
// knows. Requires: a selector.
bool MatchesSession(const recording::Session& session, std::string_view selector);

// --graph and --shape: which slots of the probes.
struct WhichOptions {
  std::string graph;
  std::string shape;
  // Fails: an invalid shape.
  Result<WhichSlots> Parse() const;
};
// " --graph 'bs=8' --shape 16,100", as they were given.
std::string SameWhich(const WhichOptions& options);
void AddWhichOptions(CLI::App& app, WhichOptions* options);

struct ScopeOptions {
  std::vector<std::string> probes;
  std::string replays;  // "7", "100..200", "100.."
  WhichOptions which = {};
};

// Fails: a bad glob or range.
Result<analysis::Scope> MakeScope(const Context& context, const ScopeOptions& options);

// Says that `options` select no probe of `source`, and names that are close. `typed`: what opens
// the source in another command: "a.cgrec -s train".
int FailNoProbe(const Context& context, const source::Source& source, const ScopeOptions& options,
                const std::string& typed);

}  // namespace cgdebug::cli
