// command.h: one row of the table of commands.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "client/cli/context.h"

namespace CLI {
class App;
}

namespace cgdebug::cli {

using RunFunction = std::function<int(Context&)>;

// What a command writes: lines that follow something, a long text that is complete at once, or a
// file. A text goes through a pager; while a text or a file is made, a line says how far it is.
enum class Output { kLines, kText, kFile };

struct Command {
  std::string_view name;
  std::string_view group;  // its heading in the help
  std::string_view summary;
  std::string_view examples;  // what its help begins with; empty = not shown in help
  // Declares the command's options on `app`; returns what runs it after they were parsed.
  RunFunction (*add)(CLI::App& app);
  Output output = Output::kLines;
};

// Every command, in the order of the help.
std::span<const Command> Commands();

// The commands with their summaries under the headings of their groups; only the first group, and
// where the others are, without `all`.
std::string CommandList(bool all);

// --- one small file each -------------------------------------------------------------------------

RunFunction AddRun(CLI::App& app);
RunFunction AddPs(CLI::App& app);
RunFunction AddStatus(CLI::App& app);
RunFunction AddTop(CLI::App& app);
RunFunction AddProbes(CLI::App& app);
RunFunction AddGraphs(CLI::App& app);
RunFunction AddOps(CLI::App& app);
RunFunction AddWhere(CLI::App& app);
RunFunction AddWhy(CLI::App& app);
RunFunction AddTail(CLI::App& app);
RunFunction AddShow(CLI::App& app);
RunFunction AddSet(CLI::App& app);
RunFunction AddInfo(CLI::App& app);
RunFunction AddStats(CLI::App& app);
RunFunction AddCheck(CLI::App& app);
RunFunction AddDiff(CLI::App& app);
RunFunction AddRanks(CLI::App& app);
RunFunction AddRaces(CLI::App& app);
RunFunction AddAudit(CLI::App& app);
RunFunction AddAsk(CLI::App& app);
RunFunction AddRepro(CLI::App& app);
RunFunction AddRecord(CLI::App& app);
RunFunction AddFreeze(CLI::App& app);
RunFunction AddQuery(CLI::App& app);
RunFunction AddReport(CLI::App& app);
RunFunction AddExport(CLI::App& app);
RunFunction AddVerify(CLI::App& app);
RunFunction AddRepair(CLI::App& app);
RunFunction AddExtract(CLI::App& app);
RunFunction AddRemove(CLI::App& app);
RunFunction AddDoctor(CLI::App& app);
RunFunction AddDaemon(CLI::App& app);
RunFunction AddConfig(CLI::App& app);
RunFunction AddHelp(CLI::App& app);
RunFunction AddCompletion(CLI::App& app);
RunFunction AddComplete(CLI::App& app);

}  // namespace cgdebug::cli
