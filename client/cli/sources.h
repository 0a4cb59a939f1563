// sources.h: SOURCE on the command line.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/align.h"
#include "client/cli/context.h"
#include "client/source/source.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/recording/types.h"

namespace CLI {
class App;
}

namespace cgdebug::cli {

// What stands for a source on the command line: a path, "live", or a session.
inline constexpr const char* kSourceHelp =
    "NAME.cgrec, a folder of them, .safetensors, live or a session";

// Opens it; a path that exists wins over a session of the same name. `session`: of a file the
// tensors of that job only, of "live" which one; empty: all of the file, the newest job. 0, or what
// to exit with; the reason has been said then.
int OpenSource(Context& context, const std::string& text, const std::string& session,
               std::unique_ptr<source::Source>* source);
// The same with the session that --session names.
int OpenSource(Context& context, const std::string& text, std::unique_ptr<source::Source>* source);

// Which ranks of a distributed job are in it, in lines, where some are not; of a live one always.
std::string RanksHere(source::Source& source);

// Tells of recordings of a folder that cannot be read, where the answer itself does not.
void SayUnread(const Context& context, const source::Source& source);

// As MatchesSession of a live one, which has a key as well. Requires: a selector.
bool MatchesSession(const recording::Session& session, std::string_view selector);

// --graph and --shape: which slots of the probes.
struct WhichOptions {
  std::string graph;
  std::string shape;
  // Fails: a shape that is none.
  Result<WhichSlots> Parse() const;
};
void AddWhichOptions(CLI::App& app, WhichOptions* options);

struct ScopeOptions {
  std::vector<std::string> probes;
  std::string replays;  // "7", "100..200", "100.."
  WhichOptions which = {};
};

// Fails: a bad glob or range.
Result<analysis::Scope> MakeScope(const Context& context, const ScopeOptions& options);

// No probe of `source` is wanted: says so, with names that are close.
int FailNoProbe(const Context& context, const source::Source& source, const ScopeOptions& options);

}  // namespace cgdebug::cli
